"""Accuracy of gradient_only.py: test accuracy of the best validation epoch, and the bias of gradients; SAGE.

Ranks are threads. Seeds are paired: with the same seed all strategies begin with the same weights, and those on many
ranks with the same chunks; `single` is what they are compared with. Every score is exact, on the whole graph. All that
`gradient_only` does not need to be told is left at its default, which is the column "remembered":

    rows, turns=1 historical rows of neighbours; or all of them computed in every step
    isolated      neighbours on other ranks are missing: `grappa`, as in all that follows
    UW            one chunk of another rank is held beside the own, in turn; nothing is corrected
    FP            one chunk of another rank, always the same
    node, batch   UW, corrected by coverage: each training node by its own, or all of a rank by their mean
    shrinkage     node, with weights drawn towards 1 as far as the data say
    sweep         UW, edges weighted such that a sweep is exact

To hold down the time of the whole, 4 random chunks and 4 layers have all seeds of a graph and other rows
at most FEW_SEEDS of them, as have all columns but `single` and remembered. Those beside isolated are measured for three
rows; rows and turns=1 for one more. "Gap" is `single` minus isolated, of the seeds of both.

Bias: the distance of the gradient of the first step from that of the whole graph, over its length, without dropout: of
one super-epoch, and of the mean over a sweep.
"""

import logging
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from curves import Recipe, first_gradients, train
from harness import Benchmark, Target, console, difference, make_table
from laconic.datasets import load
from laconic.graph import Graph
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.session.data import prepare_features
from laconic.specs import parse_spec

SINGLE, ISOLATED, DEFAULT = "single", "isolated", "remembered"
OPTIONS = {
    DEFAULT: "gradient_only({})",
    ISOLATED: "grappa({})",
    "rows": "gradient_only(keep=rows, {})",
    "turns=1": "gradient_only(turns=1, {})",
    "UW": "grappa(variable=1, {})",
    "FP": "grappa(variable=1, schedule=fixed, {})",
    "node": "grappa(variable=1, correction=node, {})",
    "batch": "grappa(variable=1, correction=batch, {})",
    "shrinkage": "grappa(variable=1, correction=node, shrinkage=auto, {})",
    "sweep": "grappa(variable=1, correction=sweep, {})",
}
# What the default is compared with wherever it differs from both.
KEPT = ("rows", "turns=1")
MODEL = "sage(hidden={hidden}, layers={layers}, dropout=0.5)"


@dataclass(frozen=True)
class Setting:
    """How a graph is trained: numbers of ranks, seeds, the recipe, and models."""

    ranks: tuple[int, ...]
    num_seeds: int
    epochs: int
    patience: int
    weight_decay: float = 0.0
    hidden: int = 64
    layers: tuple[int, ...] = (2, 4)


# Few labels: many seeds, weight decay. Many labels: every epoch costs more, seeds differ less.
GRAPHS = {
    "cora": Setting((4, 8), 10, 100, 25, weight_decay=5e-4),
    "pubmed": Setting((4, 8), 5, 100, 25, weight_decay=5e-4),
    "debian": Setting((4,), 3, 150, 60),
    "facebook_pages": Setting((4, 8), 2, 40, 20, hidden=32),
    "citeseer": Setting((4, 8), 10, 100, 25, weight_decay=5e-4),
    "amazon_photo": Setting((4, 8), 5, 150, 60),
    # Longer than a super-epoch: with 20 epochs nothing is refreshed.
    "coauthor_physics": Setting((4,), 2, 50, 40, hidden=32, layers=(4,)),
}
LARGE = 10_000


@dataclass(frozen=True)
class Task:
    """What a row of the table compares strategies on."""

    graph: str
    num_ranks: int
    chunks: str
    layers: int

    @property
    def name(self) -> str:
        return f"{self.graph}, {self.num_ranks} {self.chunks} chunks, SAGE-{self.layers}"


# Where all columns are measured but turns=1, as nothing takes turns there.
ABLATED = (Task("cora", 4, "random", 2), Task("cora", 4, "random", 4), Task("pubmed", 4, "random", 2))
FEW_SEEDS = 3
# Where neighbours that training rows see are many, and take turns: rows and turns=1 are measured there too.
WITH_TURNS = Task("amazon_photo", 4, "random", 4)


def tasks(quick: bool) -> list[Task]:
    if quick:
        return [Task("cora", 8, "random", 2)]
    return [
        Task(graph, num_ranks, chunks, layers)
        for graph, setting in GRAPHS.items()
        # The largest graphs have no time for chunks that are easier.
        for chunks in (("random", "metis") if len(setting.ranks) > 1 else ("random",))
        # With METIS chunks two layers are `single` itself, which tests show: that is looked at where it costs little.
        for layers in (setting.layers if chunks == "random" or setting.num_seeds == 10 else (4,))
        # More ranks where isolation costs most.
        for num_ranks in (setting.ranks if (chunks, layers) == ("random", 2) else setting.ranks[:1])
    ]


def is_hard(task: Task) -> bool:
    """Whether what is kept of neighbours matters most: many of them are missing, over many layers."""
    return (task.chunks, task.layers) == ("random", 4)


def columns(task: Task, quick: bool) -> list[str]:
    if quick or task in ABLATED:
        return [column for column in OPTIONS if column != "turns=1"]
    return [DEFAULT, ISOLATED, *(KEPT if task == WITH_TURNS else ())]


def num_seeds(task: Task, quick: bool, column: str = DEFAULT) -> int:
    if quick:
        return 2
    most = GRAPHS[task.graph].num_seeds
    has_all = (task.num_ranks, task.chunks, task.layers) == (4, "random", 4) and column in (SINGLE, DEFAULT)
    return most if has_all else min(max(-(-most // 2), 2), FEW_SEEDS)


def targets(quick: bool) -> dict[str, Target]:
    """Quick: two seeds of a graph on which a seed may be two points off the mean."""
    wanted = {"least share of a gap recovered": Target(0.8 if not quick else 0.5)}
    if not quick:
        wanted["below single over 10k nodes, with an error"] = Target(0.5, at_most=True)
        wanted["below single at 4 layers, more than at 2"] = Target(0.5, at_most=True)
    return wanted


@cache
def _graph(name: str) -> Graph:
    return prepare_features(load(name), "auto")[0]


@cache
def _chunks_file(scratch: str, graph: str, chunks: str, num_ranks: int, seed: int) -> str:
    """Returns a file with the chunk of each node: cut once, not once per rank and run."""
    partitioner = parse_spec(chunks, PARTITIONERS, family="partitioner")
    path = Path(scratch) / f"{graph}-{chunks}-{num_ranks}-{seed}.npy"
    np.save(path, assign_parts(_graph(graph), partitioner, num_ranks, seed=seed))
    return str(path)


def strategy_of(task: Task, column: str, seed: int, scratch: str, more: str = "") -> str:
    path = _chunks_file(scratch, task.graph, task.chunks, task.num_ranks, seed)
    return OPTIONS[column].format(f"{more}partitioner=\"given(path='{path}')\"")


def measure(task: Task, column: str, seed: int, scratch: str) -> dict[str, float]:
    setting = GRAPHS[task.graph]
    recipe = Recipe(
        MODEL.format(hidden=setting.hidden, layers=task.layers),
        setting.epochs,
        weight_decay=setting.weight_decay,
        patience=setting.patience,
    )
    strategy = SINGLE if column == SINGLE else strategy_of(task, column, seed, scratch)
    curve = train(_graph(task.graph), strategy, 1 if column == SINGLE else task.num_ranks, recipe, seed)
    return {"test": curve.test[curve.best], "val": curve.val[curve.best], "epoch": curve.epochs[curve.best]}


def measure_bias(task: Task, column: str, scratch: str) -> dict[str, float]:
    model = MODEL.format(hidden=GRAPHS[task.graph].hidden, layers=task.layers).replace("dropout=0.5", "dropout=0.0")
    graph = _graph(task.graph)
    [whole] = first_gradients(graph, SINGLE, 1, model)
    every = "repartition_every" if OPTIONS[column].startswith("grappa") else "refresh_every"
    seen = first_gradients(graph, strategy_of(task, column, 0, scratch, f"{every}=1, "), task.num_ranks, model)
    length = float(whole.norm())
    return {
        "one": statistics.mean(float((each - whole).norm()) / length for each in seen),
        "sweep": float((sum(seen) / len(seen) - whole).norm()) / length,
        "super-epochs": len(seen),
    }


def in_order(quick: bool) -> list[tuple[Task, str]]:
    """Returns what to measure: where most is at stake first, then what targets are about, then other columns."""

    def place(what: tuple[Task, str]) -> int:
        task, column = what
        if column not in (SINGLE, ISOLATED, DEFAULT, *KEPT):
            return 2
        return 0 if is_hard(task) else 1

    return sorted(
        ((task, column) for task in tasks(quick) for column in (SINGLE, *columns(task, quick))),
        key=place,
    )


def run(benchmark: Benchmark) -> None:
    # Some columns are there to show what is lost when chunks never meet; that they do not is no news.
    logging.getLogger("laconic").setLevel(logging.ERROR)
    quick = benchmark.quick
    found: dict[tuple[Task, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for task, column in in_order(quick):
            # One `single` for all numbers of ranks and all chunks.
            name = f"{task.graph}, SAGE-{task.layers}, single" if column == SINGLE else f"{task.name}, {column}"
            runs = [
                benchmark.cell(f"{name}, seed {seed}", lambda t=task, c=column, s=seed: measure(t, c, s, scratch))
                for seed in range(num_seeds(task, quick, column))
            ]
            found[task, column] = [each["test"] for each in runs]
        show_scores(found, quick)
        show_bias(benchmark, scratch)
    benchmark.figures |= figures_of(found, quick)
    benchmark.finish()


def show_scores(found: Mapping[tuple[Task, str], Sequence[float]], quick: bool) -> None:
    table = make_table(
        f"test accuracy, percent (mean over seeds; from isolated to sweep: at most {FEW_SEEDS} seeds)",
        "graph, chunks, model",
        "seeds",
        SINGLE,
        *OPTIONS,
    )
    paired = make_table(
        "remembered minus single, by pairs", "graph, chunks, model", "mean", "error", "gap", "gap recovered"
    )
    for task in tasks(quick):
        tests = [found.get((task, column)) for column in (SINGLE, *OPTIONS)]
        shown = ["-" if values is None else f"{statistics.mean(values):.2f}" for values in tests]
        table.add_row(task.name, str(num_seeds(task, quick)), *shown)
        mean, error = difference(found[task, DEFAULT], found[task, SINGLE])
        gap, recovered = gap_of(found, task)
        paired.add_row(task.name, f"{mean:+.2f}", f"{error:.2f}", f"{gap:.2f}", f"{recovered:.0%}" if gap > 2 else "-")
    console.print(table)
    console.print(paired)


def show_bias(benchmark: Benchmark, scratch: str) -> None:
    table = make_table(
        "distance of the first gradient from that of the whole graph (cora, 8 chunks)",
        *("correction", *(f"{chunks}, SAGE-{n}: {of}" for chunks, n in BIASED for of in ("one", "sweep"))),
    )
    for column in OPTIONS:
        shown = []
        for chunks, layers in BIASED:
            task = Task("cora", 8, chunks, layers)
            numbers = benchmark.cell(
                f"{task.name}, {column}, bias", lambda t=task, c=column: measure_bias(t, c, scratch)
            )
            shown += [f"{numbers['one']:.2f}", f"{numbers['sweep']:.2f}"]
            benchmark.figures[f"bias of {column}, {chunks} chunks, SAGE-{layers}"] = numbers["sweep"]
        table.add_row(column, *shown)
    console.print(table)


BIASED = (("random", 2), ("random", 4), ("metis", 2), ("metis", 4))


def gap_of(found: Mapping[tuple[Task, str], Sequence[float]], task: Task) -> tuple[float, float]:
    """Returns what isolated training loses, and the share of it that the default wins back; of the seeds of all."""
    of_all = len(found[task, ISOLATED])
    single, isolated, default = (
        statistics.mean(found[task, column][:of_all]) for column in (SINGLE, ISOLATED, DEFAULT)
    )
    gap = single - isolated
    return gap, (default - isolated) / gap if gap else float("nan")


def figures_of(found: Mapping[tuple[Task, str], Sequence[float]], quick: bool) -> dict[str, float]:
    figures, below, shares = {}, {}, []
    for task in tasks(quick):
        mean, error = difference(found[task, DEFAULT], found[task, SINGLE])
        below[task] = -mean
        figures[f"{task.name}: below single"] = -mean
        figures[f"{task.name}: error"] = error
        gap, share = gap_of(found, task)
        figures[f"{task.name}: gap"] = gap
        if gap > 2:
            shares.append(share)
    # No gap of 2 points anywhere leaves nothing to recover.
    figures["least share of a gap recovered"] = min(shares, default=1.0)
    if not quick:
        large = [task for task in tasks(quick) if _graph(task.graph).num_nodes > LARGE]
        figures["below single over 10k nodes, with an error"] = max(
            below[task] + figures[f"{task.name}: error"] for task in large
        )
        # Of rows that there are for both.
        alike = [
            task
            for task in tasks(quick)
            if (task.num_ranks, task.chunks) == (4, "random") and len(GRAPHS[task.graph].layers) == 2
        ]
        by_layers = {n: statistics.mean(below[task] for task in alike if task.layers == n) for n in (2, 4)}
        figures["below single at 4 layers, more than at 2"] = by_layers[4] - by_layers[2]
    return figures
