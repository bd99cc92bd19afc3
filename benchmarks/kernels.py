"""The kernels one by one: how near the sparse product is to its bound, and what sampling costs a training run.

    python benchmarks/kernels.py            # some minutes, resumes when stopped
    python benchmarks/kernels.py --quick    # about a minute

The bound of the product is a read-only pass, with the same prefetch, over the same rows in the same order. Node orders
are compared on a real graph where LACONIC_DATA leads to `debian` or `coauthor_physics`, else on a generated one.
"""

import copy
import sys
import time
import warnings

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv, GATv2Conv, GraphSAGE, SAGEConv

from graphs import NUM_CLASSES, NUM_FEATURES, random_graph
from harness import Benchmark, Target, console, interleaved, make_table
from laconic.attach import attach
from laconic.datasets import load
from laconic.errors import DataError
from laconic.graph import Adjacency, Graph, Shard
from laconic.graph.operators.dropout import drop_nodes
from laconic.graph.operators.linear import LinearOperator
from laconic.graph.sampling import BatchStream, NeighbourSampler, epoch_batches
from laconic.kernels.balance import balanced_rows
from laconic.kernels.compile import parallel_kernel, use_threads
from laconic.kernels.keyed import fold_key
from laconic.kernels.prefetch import prefetch_row
from laconic.kernels.product import PREFETCH_DISTANCE, no_factor, sparse_product
from laconic.store.reorder import REORDERS, order_nodes

WIDTH = 128
SIZE = {True: (50_000, 20), False: (100_000, 30)}
REPEATS = {True: 5, False: 11}
BATCH_SIZE, FANOUTS = 1024, (10, 10)
REAL_GRAPHS = ("debian", "coauthor_physics")


def targets(quick: bool) -> dict[str, Target]:
    """Quick: smaller graphs, whose rows partly stay in cache, and few repeats."""
    return {
        "product over csr, no prefetch": Target(1.3 if not quick else 1.1),
        "product over csr": Target(1.6 if not quick else 1.2),
        "share of read-only pass": Target(0.8 if not quick else 0.6),
        "sampling wait share": Target(0.2, at_most=True),
    }


@parallel_kernel
def read_only_pass(bounds, indptr, indices, x, out, distance):
    """Reads the rows that `sparse_product` reads, in its order, and adds them up."""
    width = x.shape[1]
    for part in numba.prange(bounds.shape[0] - 1):
        total = x.dtype.type(0)
        for k in range(indptr[bounds[part]], indptr[bounds[part + 1]]):
            if k + distance < indices.shape[0]:
                prefetch_row(x, indices[k + distance], width)
            for f in range(width):
                total += x[indices[k], f]
        out[part] = total


def measure_product(graph: Graph, repeats: int) -> dict[str, float]:
    """Seconds of one product of width 128 by each contender."""
    adjacency = graph.adjacency
    bounds = balanced_rows(adjacency.indptr, use_threads(torch.get_num_threads()))
    x = graph.x.numpy()
    out, sums, none = np.empty_like(x), np.empty(len(bounds), x.dtype), no_factor(x.dtype)
    # Both index types that torch takes: the faster one is the one to beat.
    wide, narrow = (
        torch.sparse_csr_tensor(
            torch.from_numpy(adjacency.indptr).to(index),
            torch.from_numpy(adjacency.indices).to(index),
            torch.ones(adjacency.num_edges),
            (graph.num_nodes, graph.num_nodes),
        )
        for index in (torch.int64, torch.int32)
    )

    def product(distance: int) -> None:
        sparse_product(
            bounds, adjacency.indptr, adjacency.indices, none, none, none, none, False, x, out, False, distance
        )

    return interleaved(
        {
            "torch csr": lambda: wide @ graph.x,
            "torch csr int32": lambda: narrow @ graph.x,
            "no prefetch": lambda: product(adjacency.num_edges),
            "laconic": lambda: product(PREFETCH_DISTANCE),
            "read-only": lambda: read_only_pass(
                bounds, adjacency.indptr, adjacency.indices, x, sums, PREFETCH_DISTANCE
            ),
        },
        repeats,
    )


def measure_convolution(conv: torch.nn.Module, graph: Graph, repeats: int) -> dict[str, float]:
    """Seconds of a forward and backward pass of one convolution under PyG and under our kernels."""
    plain = copy.deepcopy(conv)
    attach(conv, Shard.whole(graph))
    x = graph.x.clone().requires_grad_()

    def run(module: torch.nn.Module) -> None:
        module(x, graph.edge_index).sum().backward()

    return interleaved({"pyg": lambda: run(plain), "laconic": lambda: run(conv)}, repeats)


def measure_dropout(graph: Graph, repeats: int) -> dict[str, float]:
    ids, key = torch.arange(graph.num_nodes), fold_key(1)
    return interleaved(
        {
            "torch": lambda: F.dropout(graph.x, 0.5),
            "laconic": lambda: drop_nodes(graph.x, 0.5, key, ids),
        },
        repeats,
    )


def measure_sampling(graph: Graph, max_batches: int) -> dict[str, float]:
    """Mini-batch training of a SAGE with two layers: seeds drawn per second, and the share of time spent waiting."""
    sampler = NeighbourSampler(graph, FANOUTS, seed=0)
    rows = torch.arange(graph.num_nodes)[: BATCH_SIZE * max_batches]
    sampler.sample(rows[:BATCH_SIZE].numpy(), epoch=0, step=0)
    begin = time.perf_counter()
    for step in range(10):
        sampler.sample(rows[step * BATCH_SIZE : (step + 1) * BATCH_SIZE].numpy(), epoch=0, step=step)
    seeds_per_second = 10 * BATCH_SIZE / (time.perf_counter() - begin)
    model = GraphSAGE(NUM_FEATURES, WIDTH, 2, NUM_CLASSES)
    attachment = attach(model, Shard.whole(graph))
    optimizer = torch.optim.Adam(model.parameters())

    def train(batches: BatchStream) -> None:
        for batch in batches:
            with attachment.using(batch):
                out = model(batch.x, batch.edge_index)
                optimizer.zero_grad()
                F.cross_entropy(out[: batch.num_owned], batch.y[: batch.num_owned]).backward()
            optimizer.step()

    train(epoch_batches(sampler, rows[: 2 * BATCH_SIZE], batch_size=BATCH_SIZE, epoch=0))  # warm up
    begin = time.perf_counter()
    batches = epoch_batches(sampler, rows, batch_size=BATCH_SIZE, epoch=1)
    train(batches)
    elapsed = time.perf_counter() - begin
    return {"seeds per second": seeds_per_second, "wait share": batches.wait_seconds / elapsed, "epoch": elapsed}


def real_graph(quick: bool) -> Graph:
    """The first real graph that is there; features are replaced by 128 columns, the width compared here."""
    for name in REAL_GRAPHS:
        try:
            return load(name)
        except DataError:
            continue
    console.print("LACONIC_DATA leads to none of", ", ".join(REAL_GRAPHS), "- a generated graph stands in.")
    return load("rmat(scale=14, edge_factor=8)" if quick else "rmat(scale=16, edge_factor=16)")


def measure_orders(graph: Graph, repeats: int) -> dict[str, float]:
    """Seconds of a product of width 128 with the nodes in each order, and in a random one."""
    parts = np.zeros(graph.num_nodes, np.int32)
    orders = {reorder: order_nodes(graph, parts, reorder) for reorder in REORDERS}
    orders["shuffled"] = np.random.default_rng(0).permutation(graph.num_nodes)
    x = torch.randn(graph.num_nodes, WIDTH, generator=torch.Generator().manual_seed(0))
    contenders = {}
    for name, order in orders.items():
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        sources, destinations = place[graph.edge_index.numpy()]
        operator = LinearOperator(Adjacency.from_edges(sources, destinations, graph.num_nodes, graph.num_nodes))
        contenders[name] = lambda operator=operator: operator.multiply(x)
    return interleaved(contenders, repeats)


def main() -> None:
    benchmark = Benchmark.from_command_line(
        "kernels", __doc__.splitlines()[0], {quick: targets(quick) for quick in (True, False)}
    )
    quick, repeats = benchmark.quick, REPEATS[benchmark.quick]
    graphs = [random_graph(*SIZE[quick], power_law=power_law) for power_law in (False, True)]
    figures = benchmark.figures

    table = make_table(
        f"sparse product, width {WIDTH}: milliseconds (GB/s of rows read)",
        "graph",
        "torch csr",
        "torch csr int32",
        "no prefetch",
        "laconic",
        "read-only",
    )
    for graph in graphs:
        numbers = benchmark.cell(f"product {graph.name}", lambda g=graph: measure_product(g, repeats))
        gigabytes = graph.num_edges * WIDTH * 4 / 1e9
        table.add_row(graph.name, *(f"{s * 1e3:.0f} ({gigabytes / s:.1f})" for s in numbers.values()))
        csr = min(numbers["torch csr"], numbers["torch csr int32"])
        for figure, value in {
            "product over csr, no prefetch": csr / numbers["no prefetch"],
            "product over csr": csr / numbers["laconic"],
            "share of read-only pass": numbers["read-only"] / numbers["laconic"],
        }.items():
            figures[figure] = min(figures.get(figure, value), value)
    console.print(table)

    table = make_table("forward and backward of one layer, seconds", "layer", "pyg edge_index", "laconic", "ratio")
    layers = {
        "GAT, 4 heads": lambda: GATConv(NUM_FEATURES, WIDTH // 4, heads=4),
        "GATv2, 4 heads": lambda: GATv2Conv(NUM_FEATURES, WIDTH // 4, heads=4),
        "SAGE max": lambda: SAGEConv(NUM_FEATURES, WIDTH, aggr="max"),
    }
    for name, make in layers.items():
        numbers = benchmark.cell(name, lambda m=make: measure_convolution(m(), graphs[0], 2 if quick else 3))
        figures[f"{name} over edge_index"] = numbers["pyg"] / numbers["laconic"]
        table.add_row(name, *(f"{s:.3f}" for s in numbers.values()), f"{figures[f'{name} over edge_index']:.1f}x")
    numbers = benchmark.cell("dropout", lambda: measure_dropout(graphs[0], repeats))
    figures["dropout over torch"] = numbers["torch"] / numbers["laconic"]
    table.add_row("dropout (forward)", *(f"{s:.3f}" for s in numbers.values()), f"{figures['dropout over torch']:.1f}x")
    console.print(table)

    numbers = benchmark.cell("sampling", lambda: measure_sampling(graphs[0], 20 if quick else 90))
    figures["sampling wait share"] = numbers["wait share"]
    figures["sampling seeds per second"] = numbers["seeds per second"]
    console.print(
        f"sampling, fan-outs {FANOUTS}, one thread: {numbers['seeds per second']:,.0f} seeds per second; training "
        f"waits {numbers['wait share']:.1%} of an epoch of {numbers['epoch']:.1f} s"
    )

    graph = real_graph(quick)
    numbers = benchmark.cell(f"orders {graph.name}", lambda: measure_orders(graph, repeats))
    table = make_table(f"node order on {graph.name}: milliseconds per product", "order", "ms", "gain over given order")
    for name, seconds in numbers.items():
        table.add_row(name, f"{seconds * 1e3:.1f}", f"{numbers['none'] / seconds:.2f}x")
    console.print(table)
    figures["best order over given"] = numbers["none"] / min(numbers.values())
    figures["best order over shuffled"] = numbers["shuffled"] / min(numbers.values())
    benchmark.finish()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*[Ss]parse.*")
    sys.exit(main())
