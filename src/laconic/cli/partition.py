"""The verb `partition`: a graph in, a store of chunks on disk out."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from laconic.cli.console import console
from laconic.cli.status import LOADING, working
from laconic.units import format_bytes, format_count, format_seconds


def partition(
    data: str = typer.Argument(..., help="A dataset (see `laconic datasets`), a file, or a store to divide anew."),
    out: Path = typer.Argument(..., help="The folder to write; it must not exist yet."),
    parts: int = typer.Option(..., "--parts", "-p", min=1, help="Number of parts, one chunk each."),
    how: str = typer.Option(
        "metis", "--with", "-w", help="Partitioner: metis, ldg, fennel, random, hash or given(path='parts.npy')."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="The same seed gives the same parts."),
    features: str | None = typer.Option(
        None, "--features", help="Store features as float16, bfloat16, float32 or float64; as they are if not given."
    ),
    reorder: str = typer.Option(
        "none", "--reorder", help="Node order within a chunk: none, degree, bfs or rcm. bfs and rcm speed training up."
    ),
    undirected: bool = typer.Option(
        False, "--undirected", help="Add the reverse of each edge, for an undirected graph whose edges are listed once."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a store that is there already."),
) -> None:
    """Divides a graph into parts and writes them as a store, from which each rank reads its own chunks only.

    The store is written whole or not at all. Features stored in half precision take half the space and are rounded.

    **Example**

    ```
    laconic partition ogbn-arxiv --parts 8 store/arxiv
    laconic partition cora.npz --parts 4 store/cora --with "ldg(slack=1.1)"
    laconic partition cora.npz --parts 4 store/half --features float16
    laconic partition data/papers --parts 4 store/papers --undirected
    ```
    """
    with working(LOADING):
        from laconic.cli.store_table import print_store
        from laconic.datasets import load
        from laconic.datasets import undirected as with_reverse_edges
        from laconic.errors import ConfigError
        from laconic.partitioners import PARTITIONERS, assign_parts
        from laconic.specs import format_spec, parse_spec
        from laconic.store import check_target, looks_like_store, open_store, write_store
        from laconic.store.layout import check_features_dtype
        from laconic.store.reorder import check_reorder

    # All that can be wrong is found before the long work begins.
    partitioner = parse_spec(how, PARTITIONERS, family="partitioner")
    order, stored_as = check_reorder(reorder), check_features_dtype(features)
    check_target(out, overwrite=overwrite)
    started = time.perf_counter()
    with working(f"Loading {data}"):
        if looks_like_store(data):
            graph = open_store(data).to_graph()
            graph = with_reverse_edges(graph) if undirected else graph
        else:
            graph = load(data, undirected=undirected)
    if parts > graph.num_nodes:
        raise ConfigError(
            f"--parts is {parts}, but {data} has {format_count(graph.num_nodes)} nodes, and a part needs one at least. "
            f"Give --parts {graph.num_nodes} or fewer."
        )
    spec = format_spec(partitioner, PARTITIONERS)
    with working(f"Dividing {format_count(graph.num_nodes)} nodes into {parts} parts with {spec}"):
        assigned = assign_parts(graph, partitioner, parts, seed=seed)
    with working(f"Writing {out}") as status, _ended_like_interrupted():
        write_store(
            graph,
            assigned,
            out,
            num_parts=parts,
            features=stored_as,
            reorder=order,
            provenance={"source": data, "partitioner": spec, "seed": seed, "undirected": str(undirected).lower()},
            overwrite=overwrite,
            progress=lambda done, total: status.tell(f"Writing {out}: chunk {done} of {total}"),
        )
    store = open_store(out)
    print_store(console(), store)
    took = format_seconds(time.perf_counter() - started)
    console().print(f"Wrote {out}, {format_bytes(store.manifest.num_bytes)}, in {took}.", soft_wrap=True, markup=False)


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Lets SIGTERM, which would end the process on the spot, clean up as Ctrl-C does while the block runs."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
