"""Accuracy of compression.py: contenders side by side on real graphs, scored with full communication.

Ranks are threads, and as many cells run at a time as there are cores. All contenders of a cell have the same model
(SAGE, 3 layers of 64, dropout 0.5 or none), first weights, parts and seeds: the score is the test accuracy of the best
validation epoch. Bytes are those of rows and gradients, forward and backward, of the whole run and all ranks, over
those of full communication, which keeps the first layer's halo and exchanges the narrower side.

- none: edges between parts are left out in training;
- fixed: one subset of columns per message at a fixed rate (VARCO's baselines);
- paper: the same at a rate that falls from one column to all of them, slope 5, the last layer as it is;
- ours: codec=quantize(bits=2), every layer, every epoch;
- feedback: codec=error_feedback, the same bytes: differences to what was sent before, and what rounding loses, later.

Differences to full are pooled for each graph over its numbers of ranks, partitioners and seeds; what a graph loses is
their mean and one standard error more. Where runs are long there are fewer: GRAPHS and `contenders` say which.
"""

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from compression_training import DROPOUT, Numbers, measure, trace
from harness import RESULTS, Benchmark, Target, console, make_table

OURS, FEEDBACK, PAPER, FULL, NONE = "ours", "feedback", "paper", "full", "none"
FIXED = ("fixed 2", "fixed 4", "fixed 8")
LOSES, WITH_ERROR = "points that ours loses, worst graph", "points that ours loses, with an error, worst graph"
SHARE, AREA = "share of bytes of ours, worst cell", "area of ours over that of the paper, worst graph"


@dataclass(frozen=True)
class Plan:
    """How a graph is measured: epochs of a run, numbers of ranks, and seeds on four of them (others: the first)."""

    epochs: int
    dropout: float = DROPOUT
    ranks: tuple[int, ...] = (2, 4, 8, 16)
    seeds: int = 1


GRAPHS = {
    "cora": Plan(100, seeds=6),
    "citeseer": Plan(100, seeds=6),
    "pubmed": Plan(100, seeds=2),
    # With dropout, it would need some 200 epochs.
    "amazon_photo": Plan(100, dropout=0.0),
    # Thousands of features: an epoch is long, and few are needed.
    "facebook_pages": Plan(40),
    "debian": Plan(40, ranks=(4,), seeds=2),
    "coauthor_physics": Plan(30, ranks=(4,)),
}
QUICK = {"cora": Plan(30, ranks=(4,))}
ALL_CONTENDERS = ("cora", "citeseer", "pubmed")
# Of which one run takes 13 GB.
HEAVY = ("coauthor_physics",)


@dataclass(frozen=True)
class Cell:
    graph: str
    num_ranks: int
    partitioner: str
    method: str
    seed: int
    epochs: int
    dropout: float

    @property
    def setting(self) -> tuple[str, int, str]:
        return self.graph, self.num_ranks, self.partitioner

    @property
    def name(self) -> str:
        return f"{self.graph}, {self.num_ranks} ranks, {self.partitioner}, {self.method}, {self.seed}"

    @property
    def work(self) -> int:
        """How long it takes, against others."""
        return self.num_ranks * self.epochs * (2 if self.method in (OURS, FEEDBACK) else 1)

    def measure(self) -> Numbers:
        settings = (self.graph, self.num_ranks, self.partitioner, self.method, self.seed)
        return measure(*settings, self.epochs, self.dropout)


def contenders(graph: str, num_ranks: int, seed: int) -> tuple[str, ...]:
    """All of them on four ranks of the small graphs; where ranks are many, messages are, and runs are long."""
    if seed > 0:
        return (FULL, OURS, FEEDBACK)
    if num_ranks == 4 and graph in ALL_CONTENDERS:
        return (FULL, NONE, *FIXED, PAPER, OURS, FEEDBACK)
    if num_ranks == 16 or (graph == "facebook_pages" and num_ranks != 4):
        return (FULL, OURS, FEEDBACK)
    return (FULL, NONE, PAPER, OURS, FEEDBACK) if num_ranks == 4 else (FULL, PAPER, OURS, FEEDBACK)


def cells(quick: bool) -> list[Cell]:
    return [
        Cell(graph, num_ranks, partitioner, method, seed, plan.epochs, plan.dropout)
        for graph, plan in (QUICK if quick else GRAPHS).items()
        for num_ranks in plan.ranks
        for partitioner in (("random",) if quick else ("random", "metis"))
        for seed in range(plan.seeds if num_ranks == 4 else 1)
        for method in contenders(graph, num_ranks, seed)
    ]


def targets(quick: bool) -> dict[str, Target]:
    """Quick: one seed and few epochs, whose accuracies say little."""
    return {
        WITH_ERROR: Target(0.3 if not quick else 5.0, at_most=True),
        SHARE: Target(0.1, at_most=True),
        AREA: Target(0.0),
    }


def run(benchmark: Benchmark) -> None:
    chosen = cells(benchmark.quick)
    found = measure_all(benchmark, [cell for cell in chosen if cell.graph not in HEAVY])
    found |= measure_all(benchmark, [cell for cell in chosen if cell.graph in HEAVY], at_a_time=1)
    for setting in dict.fromkeys(cell.setting for cell in chosen):
        show(setting, {cell: numbers for cell, numbers in found.items() if cell.setting == setting})
    graphs = dict.fromkeys(cell.graph for cell in chosen)
    of_graphs = {graph: of_graph(graph, OURS, found) for graph in graphs}
    show_graphs(OURS, of_graphs)
    show_graphs(FEEDBACK, {graph: of_graph(graph, FEEDBACK, found) for graph in graphs})
    benchmark.figures = {
        LOSES: max(-one["difference"] for one in of_graphs.values()),
        WITH_ERROR: max(one["error"] - one["difference"] for one in of_graphs.values()),
        SHARE: max(one["share"] for one in of_graphs.values()),
        AREA: min(one["area"] for one in of_graphs.values()),
    }
    traces = {
        method: benchmark.cell(f"trace, {method}", lambda m=method: trace("cora", 4, "random", m, 40))
        for method in ("fixed 8", PAPER, OURS, FEEDBACK, "adaptive")
    }
    keep_curves(benchmark, found, traces)
    benchmark.finish()


def measure_all(benchmark: Benchmark, chosen: Sequence[Any], *, at_a_time: int | None = None) -> dict[Any, Numbers]:
    """Measures what an earlier run has not, the longest first.

    Args:
        chosen: each with a name, its `work`, and `measure`, as Cell has them.
        at_a_time: how many; by default as many as there are cores.
    """
    waiting = [cell for cell in chosen if not benchmark.is_known(cell.name)]
    waiting.sort(key=lambda cell: cell.work, reverse=True)
    with ProcessPoolExecutor(at_a_time or os.cpu_count(), get_context("spawn")) as pool:
        running = {pool.submit(cell.measure): cell for cell in waiting}
        for done in as_completed(running):
            numbers = done.result()
            benchmark.cell(running[done].name, lambda n=numbers: n)
            console.print(f"{running[done].name}: {numbers['test']:.1f}%, {numbers['seconds']:.0f} s")
    return {cell: benchmark.cell(cell.name, cell.measure) for cell in chosen}


def share_and_differences(method: str, found: Mapping[Cell, Numbers]) -> tuple[float, list[float]]:
    """Of cells of one setting: bytes over those of full, and test accuracy minus that of full, seed by seed."""
    full = {cell.seed: numbers for cell, numbers in found.items() if cell.method == FULL}
    mine = {cell.seed: numbers for cell, numbers in found.items() if cell.method == method}
    differences = [numbers["test"] - full[seed]["test"] for seed, numbers in mine.items()]
    return next(iter(mine.values()))["bytes"] / full[0]["bytes"], differences


def area(numbers: Numbers, full_bytes: float) -> float:
    """Mean accuracy over the logarithm of bytes, from a hundredth of full communication to all of it.

    Before the first score, accuracy counts as 0.
    """
    points = list(curve(numbers))
    edges = np.geomspace(0.01 * full_bytes, full_bytes, 401)
    return statistics.mean(
        max(((spent, test) for spent, test in points if spent <= edge), default=(0.0, 0.0))[1] for edge in edges
    )


def curve(numbers: Numbers) -> Iterable[tuple[float, float]]:
    """Bytes and test accuracy, score by score."""
    num_points = sum(name.startswith("bytes ") for name in numbers)
    return ((numbers[f"bytes {k}"], numbers[f"test {k}"]) for k in range(num_points))


def of_graph(graph: str, mine: str, found: Mapping[Cell, Numbers]) -> dict[str, float]:
    """Pools what a contender does on a graph: difference to full, its standard error, the largest share, the area."""
    differences, shares, areas = [], [], []
    for setting in dict.fromkeys(cell.setting for cell in found if cell.graph == graph):
        here = {cell: numbers for cell, numbers in found.items() if cell.setting == setting}
        share, of_setting = share_and_differences(mine, here)
        differences += of_setting
        shares.append(share)
        by_method = {(cell.method, cell.seed): numbers for cell, numbers in here.items()}
        full_bytes = by_method[FULL, 0]["bytes"]
        areas += [
            area(by_method[mine, seed], full_bytes) - area(numbers, full_bytes)
            for (method, seed), numbers in by_method.items()
            if method == PAPER
        ]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return {
        "difference": statistics.mean(differences),
        "error": error,
        "runs": len(differences),
        "share": max(shares),
        "area": statistics.mean(areas),
    }


def show(setting: tuple[str, int, str], found: Mapping[Cell, Numbers]) -> None:
    title = "{}, {} ranks, {}".format(*setting)
    table = make_table(title, "contender", "accuracy", "minus full", "seeds", "bytes of full", "area")
    full_bytes = next(numbers["bytes"] for cell, numbers in found.items() if cell.method == FULL)
    for method in dict.fromkeys(cell.method for cell in found):
        share, differences = share_and_differences(method, found)
        mine = [numbers for cell, numbers in found.items() if cell.method == method]
        table.add_row(
            method,
            f"{statistics.mean(numbers['test'] for numbers in mine):.2f}",
            f"{statistics.mean(differences):+.2f}",
            str(len(differences)),
            f"{share:.1%}",
            f"{statistics.mean(area(numbers, full_bytes) for numbers in mine):.1f}",
        )
    console.print(table)


def show_graphs(mine: str, of_graphs: Mapping[str, Mapping[str, float]]) -> None:
    table = make_table(
        f"{mine}, over all numbers of ranks and partitioners of a graph",
        "graph",
        "minus full",
        "standard error",
        "pairs of runs",
        "bytes of full, most",
        "area minus paper's",
    )
    for graph, one in of_graphs.items():
        table.add_row(
            graph,
            f"{one['difference']:+.2f}",
            f"{one['error']:.2f}",
            f"{one['runs']:.0f}",
            f"{one['share']:.2%}",
            f"{one['area']:+.1f}",
        )
    console.print(table)


def keep_curves(benchmark: Benchmark, found: Mapping[Cell, Numbers], traces: Mapping[str, Numbers]) -> None:
    """Leaves what compression_plots.py draws: of the first seed, four ranks, random parts."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for cell, numbers in found.items():
        if (cell.num_ranks, cell.partitioner, cell.seed) == (4, "random", 0) and cell.method != NONE:
            curves.setdefault(cell.graph, {})[cell.method] = list(curve(numbers))
    kept = {"curves": curves, "traces": {method: _columns(numbers) for method, numbers in traces.items()}}
    path = RESULTS / f"compression_curves{'.quick' if benchmark.quick else ''}.json"
    path.write_text(json.dumps(kept) + "\n")


def _columns(numbers: Numbers) -> dict[str, list[float]]:
    num_epochs = sum(name.startswith("rate ") for name in numbers)
    return {kind: [numbers[f"{kind} {epoch}"] for epoch in range(1, num_epochs + 1)] for kind in ("rate", "error")}
