"""The verb `info`: what a store, or a graph, holds."""

import typer

from laconic.cli.console import console
from laconic.cli.status import LOADING, working


def info(
    what: str = typer.Argument(..., metavar="STORE_OR_DATA", help="A store's folder, or a dataset as in `partition`."),
    all_parts: bool = typer.Option(False, "--all", help="Show every part, however many there are."),
    verify: bool = typer.Option(False, "--verify", help="Read every file of the store and compare its checksum."),
) -> None:
    """Shows a store's sizes, cut and balance with the halo of each part, or the statistics of a graph.

    A store with a file lost or cut short is refused; --verify finds one that was altered too.

    **Example**

    ```
    laconic info store/arxiv
    laconic info store/arxiv --verify
    laconic info cora.npz
    ```
    """
    with working(LOADING):
        from laconic.cli.store_table import print_graph, print_store
        from laconic.datasets import load
        from laconic.errors import ConfigError
        from laconic.graph.stats import GraphStats
        from laconic.store import looks_like_store, open_store

    if looks_like_store(what):
        with working(f"Reading every file of {what}" if verify else f"Opening {what}"):
            store = open_store(what, verify=verify)
            store.check_sizes()
        print_store(console(), store, all_parts=all_parts)
        if verify:
            console().print("Every file holds what was written.", style="green")
        return
    if verify:
        raise ConfigError(f"--verify checks a store, and {what} is none: it has no manifest.json.")
    with working(f"Loading {what}") as status:
        graph = load(what)
        status.tell("Counting degrees and components")
        stats = GraphStats.of(graph)
    print_graph(console(), stats)
