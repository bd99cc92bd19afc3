"""Accuracy against bytes: compressed exchange, side by side with full communication and none, on real graphs.

    LACONIC_DATA=folder python benchmarks/compression.py            # all graphs, numbers of ranks and partitioners
    LACONIC_DATA=folder python benchmarks/compression.py --quick    # cora on four ranks, one seed

Ranks are threads. All contenders of a cell have the same model, first weights, parts and seeds, and are scored with
full communication: the test accuracy of the best validation epoch. Bytes are those of rows and gradients (forward and
backward) of the whole run and all ranks, over those of full communication, which keeps the first layer's halo and
exchanges the narrower side.
"""

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from harness import Benchmark, Target, console, make_table
from laconic.attach import attach, detached_copy
from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.datasets import load
from laconic.graph import Graph, Shard
from laconic.models import build_model, parse_model
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.specs import parse_spec
from laconic.strategies import Strategy, parse_strategy
from laconic.trainer.data import prepare_features
from laconic.trainer.evaluate import Evaluation

EPOCHS = 200
SCORED_EVERY = 5
MODEL = "sage(hidden=64, layers=3, dropout=0.5)"
# What we recommend: changes only, 2 bits a number.
OURS = "codec=error_feedback"
PAPER, RAMP = "codec=subset, raw_last=True, ", f"most=128.0, epochs={EPOCHS}"
METHODS = {
    "full": "codec=identity",
    "fixed 2": "codec=subset, schedule=constant(value=2.0)",
    "fixed 4": "codec=subset, schedule=constant(value=4.0)",
    "fixed 8": "codec=subset, schedule=constant(value=8.0)",
    **{f"paper, slope {slope}": f"{PAPER}schedule=linear(slope={slope}.0, {RAMP})" for slope in (2, 5, 7)},
    "ours": OURS,
}


@dataclass(frozen=True)
class Setting:
    """A graph and how it is divided."""

    graph: str
    num_ranks: int
    partitioner: str

    def __str__(self) -> str:
        return f"{self.graph}, {self.num_ranks} ranks, {self.partitioner}"


SMALL = ("cora", "citeseer", "pubmed")
SETTINGS = {
    True: [Setting("cora", 4, "random")],
    False: [
        *(Setting(graph, ranks, cut) for graph in SMALL for ranks in (2, 4, 8, 16) for cut in ("random", "metis")),
        *(Setting(graph, 4, cut) for graph in ("coauthor_physics", "debian") for cut in ("random", "metis")),
    ],
}
SEEDS = {True: 1, False: 3}


@cache
def graph_called(name: str) -> Graph:
    return prepare_features(load(name), "auto")[0]


def measure(setting: Setting, method: str, seed: int, *, epochs: int = EPOCHS) -> dict[str, float]:
    """Returns accuracy in percent, the bytes of rows and gradients, and both after every few epochs, for areas."""
    graph = graph_called(setting.graph)
    # Before the ranks start: first weights come from torch's own generator.
    sizes = {"num_features": graph.num_features, "num_classes": graph.num_classes}
    models = [build_model(parse_model(MODEL), **sizes, seed=seed) for _ in range(setting.num_ranks)]
    if method == "none":
        return summary([train(parse_strategy("single"), cut(graph, setting), models[0], alone(), seed, epochs, graph)])
    text = f"compressed_halo({METHODS.get(method, method)}, partitioner={setting.partitioner})"

    def on_rank(transport: Transport) -> Curve:
        torch.set_num_threads(1)
        communicator = Communicator(transport, Ledger(transport.rank))
        return train(parse_strategy(text), graph, models[transport.rank], communicator, seed, epochs, None)

    return summary(run_ranks(setting.num_ranks, on_rank, timeout=600))


# After every few epochs: bytes that this rank has sent by then, validation and test accuracy.
Curve = list[tuple[int, float, float]]


def train(
    strategy: Strategy,
    graph: Graph,
    model: nn.Module,
    communicator: Communicator,
    seed: int,
    epochs: int,
    scored_on: Graph | None,
) -> Curve:
    """Trains, and scores on the whole graph with full communication."""
    shard = strategy.place(graph, communicator)
    strategy.attach(model, shard, seed=seed)
    evaluate = Evaluation("accuracy", shard, communicator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    rows, num_bytes, curve = shard.train_rows, 0, []
    for epoch in range(1, epochs + 1):
        model.train()
        strategy.start_epoch(epoch)
        out = run_model(model, shard)
        loss = strategy.share_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="sum") / strategy.num_train)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        num_bytes += rows_and_gradients(communicator.ledger, epoch)
        if epoch % SCORED_EVERY == 0 or epoch == epochs:
            scores = evaluate(model) if scored_on is None else score_whole(model, scored_on, communicator)
            communicator.ledger.take(epoch)
            curve.append((num_bytes, scores["val"], scores["test"]))
    return curve


def rows_and_gradients(ledger: Ledger, epoch: int) -> int:
    """Bytes that a rank sent in an epoch, but for the loss and the model's gradients."""
    rows = [row for row in ledger.take(epoch) if row.phase in ("forward", "backward") and row.layer >= 0]
    return sum(row.num_bytes for row in rows if row.direction == "sent")


def score_whole(model: nn.Module, graph: Graph, communicator: Communicator) -> dict[str, float]:
    """Scores a model that was trained on a part of a graph's edges on all of them."""
    plain, shard = detached_copy(model), Shard.whole(graph)
    attach(plain, shard)
    return Evaluation("accuracy", shard, communicator)(plain)


def cut(graph: Graph, setting: Setting) -> Graph:
    """The graph without the edges between parts."""
    partitioner = parse_spec(setting.partitioner, PARTITIONERS, family="partitioner")
    parts = torch.from_numpy(assign_parts(graph, partitioner, setting.num_ranks, seed=0))
    source, destination = graph.edge_index
    return replace(graph, edge_index=graph.edge_index[:, parts[source] == parts[destination]])


def alone() -> Communicator:
    return Communicator(LocalTransport(), Ledger(0))


def summary(curves: list[Curve]) -> dict[str, float]:
    """Adds up the bytes of all ranks; accuracy is that of the best validation so far."""
    numbers: dict[str, float] = {}
    best = (-1.0, 0.0)
    for point, (_, val, test) in enumerate(curves[0]):
        best = max(best, (val, test), key=lambda pair: pair[0])
        numbers[f"bytes {point}"] = sum(curve[point][0] for curve in curves)
        numbers[f"test {point}"] = 100 * best[1]
    return {"test": 100 * best[1], "bytes": sum(curve[-1][0] for curve in curves), **numbers}


def area(numbers: dict[str, float], full_bytes: float) -> float:
    """Mean accuracy over the logarithm of bytes, from a hundredth of full communication to all of it.

    Before the first score, accuracy counts as 0.
    """
    points = [(numbers[f"bytes {k}"], numbers[f"test {k}"]) for k in range((len(numbers) - 2) // 2)]
    edges = np.geomspace(0.01 * full_bytes, full_bytes, 401)
    return statistics.mean(
        max(((spent, test) for spent, test in points if spent <= edge), default=(0.0, 0.0))[1] for edge in edges
    )


def report(benchmark: Benchmark, setting: Setting) -> Iterator[tuple[str, float, float, float]]:
    """Prints a table and yields for each method: accuracy minus that of full, share of its bytes, area."""
    seeds = range(SEEDS[benchmark.quick])
    table = make_table(str(setting), "method", "accuracy", "minus full", "deviation", "bytes of full", "area")
    runs = {
        method: [
            benchmark.cell(f"{setting}, {method}, {seed}", lambda m=method, s=seed: measure(setting, m, s))
            for seed in seeds
        ]
        for method in ("full", "none", *METHODS)
    }
    full_bytes = runs["full"][0]["bytes"]
    for method, cells in runs.items():
        differences = [cell["test"] - full["test"] for cell, full in zip(cells, runs["full"], strict=True)]
        share, mean = cells[0]["bytes"] / full_bytes, statistics.mean(differences)
        under = statistics.mean(area(cell, full_bytes) for cell in cells)
        deviation = f"{statistics.stdev(differences):.2f}" if len(differences) > 1 else "-"
        accuracy = statistics.mean(cell["test"] for cell in cells)
        table.add_row(method, f"{accuracy:.2f}", f"{mean:+.2f}", deviation, f"{100 * share:.1f}%", f"{under:.1f}")
        yield method, mean, share, under
    console.print(table)


def main() -> None:
    targets = {
        "points that ours loses at most": Target(0.3, at_most=True),
        "share of bytes of ours at most": Target(0.1, at_most=True),
        "area of ours over that of the paper, at least": Target(0.0),
    }
    benchmark = Benchmark.from_command_line(
        "compression", __doc__.splitlines()[0], dict.fromkeys((True, False), targets)
    )
    found = {setting: {row[0]: row[1:] for row in report(benchmark, setting)} for setting in SETTINGS[benchmark.quick]}
    ours = [methods["ours"] for methods in found.values()]
    benchmark.figures = {
        "points that ours loses at most": max(-mean for mean, _, _ in ours),
        "share of bytes of ours at most": max(share for _, share, _ in ours),
        "area of ours over that of the paper, at least": min(
            methods["ours"][2] - methods["paper, slope 5"][2] for methods in found.values()
        ),
    }
    benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
