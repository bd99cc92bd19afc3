"""Speed of gradient_only.py: seconds per epoch in the lab, against exact halo exchange on the same and on METIS parts.

See gradient_only.py for what is measured and how.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from curves import Recipe, train
from exchange import NUM_HOSTS, SOURCES, read_findings, stored
from gradient_only_rank import Plan, Way
from harness import Benchmark, Target, console, make_table
from laconic.datasets import load
from laconic.lab import Lab, RunResult, check_requirements, parse_link

RANK_PROGRAM = Path(__file__).with_name("gradient_only_rank.py")
DEFAULT, SAME, METIS = "gradient_only", "halo, same parts", "halo, metis"
# Chunks that move instead of neighbours that are remembered: shown for what a switch of chunks costs.
STORED, HANDED = "moving chunks, storage", "moving chunks, peers"
WAYS = {
    DEFAULT: ("gradient_only", "random"),
    SAME: ("compressed_halo", "random"),
    METIS: ("compressed_halo", "metis"),
    STORED: ("gradient_only(remember=False, variable=1, supply=storage)", "random"),
    HANDED: ("gradient_only(remember=False, variable=1, supply=peers)", "random"),
}
MODELS = {
    "GCN": "gcn(hidden=256, layers={layers}, dropout={dropout})",
    "SAGE": "sage(hidden=256, layers={layers}, dropout={dropout})",
    "GAT": "gat(hidden=256, heads=4, layers={layers}, dropout={dropout})",
}
SLOW = ("25mbit", "100mbit")
# Of each link: turns, epochs of a turn without super-epochs, and whether a whole step goes before the first turn.
TURNS = {"25mbit": (1, 1, False), "100mbit": (1, 2, True), "1gbit": (2, 2, True)}
# Epochs in which to reach 99% of the best score: SAGE-3 needs some 20. Quick: so few that the best may be yet to come.
CURVE_EPOCHS = {True: 25, False: 40}


@dataclass(frozen=True)
class Cell:
    model: str
    layers: int
    link: str

    @property
    def kind(self) -> str:
        return f"{self.model}-{self.layers}"

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.link}"

    @property
    def ways(self) -> list[str]:
        moves = (STORED, HANDED) if (self.model, self.layers, self.link) == ("SAGE", 3, "100mbit") else ()
        return [DEFAULT, SAME, METIS, *moves]


def cells(quick: bool) -> list[Cell]:
    if quick:
        return [Cell("SAGE", 3, "100mbit")]
    return [
        Cell(m, n, link) for link in ("100mbit", "25mbit", "1gbit") for n in (3, 2, 4) for m in ("SAGE", "GCN", "GAT")
    ]


def targets(quick: bool) -> dict[str, Target]:
    """Quick: a graph a tenth the size and one turn: gradients and what a step costs beside its rows weigh more."""
    return {
        "same parts, 100mbit and below: mean gain": Target(4.0 if not quick else 2.0),
        "same parts, 100mbit and below: best gain": Target(13.0 if not quick else 2.0),
        "metis parts, 100mbit: mean gain": Target(2.0 if not quick else 0.8),
        "switching share": Target(0.05, at_most=True),
        "switching share, moving chunks": Target(0.05 if not quick else 0.1, at_most=True),
        "bytes of steps that are no gradients": Target(0, at_most=True),
        "gradient bytes over 2 (P - 1) models": Target(1.001, at_most=True),
        "counters": Target(0.03 if not quick else 0.05, at_most=True),
    }


def measure_cell(cell: Cell, graph: str) -> dict[str, float]:
    num_turns, num_epochs, steps_first = TURNS[cell.link]
    ways = {name: Way(WAYS[name][0], str(stored(graph, WAYS[name][1]))) for name in cell.ways}
    model = MODELS[cell.model].format(layers=cell.layers, dropout=0.0)
    plan = Plan(model, ways, num_turns, num_epochs, steps_first)
    with Lab(hosts=NUM_HOSTS, link=cell.link) as lab:
        command = [sys.executable, str(RANK_PROGRAM), plan.to_text()]
        result = lab.run(command, environment={"OMP_NUM_THREADS": "1"}, capture=True)
    rate = parse_link(cell.link)
    assert rate is not None
    return evaluate(result, cell.ways, rate)


def evaluate(result: RunResult, ways: Sequence[str], rate: int) -> dict[str, float]:
    """Returns the numbers of a cell, each named "<way>: <what>"."""
    hosts = read_findings(result)
    numbers = {
        "counters": max(
            abs(seen.traffic.sent_once_bytes / host["sent in run"] - 1)
            for host, seen in zip(hosts, result.hosts, strict=True)
        )
    }
    for way in ways:
        of_way = [host["of ways"][way] for host in hosts]
        numbers |= {f"{way}: {what}": value for what, value in of_one_way(of_way, rate).items()}
    return numbers


def of_one_way(hosts: Sequence[Mapping], rate: int) -> dict[str, float]:
    num_epochs = hosts[0]["num_epochs"]
    seconds = statistics.median(map(max, zip(*(host["seconds"] for host in hosts), strict=True)))
    # A step takes as long as on the slowest host; the first of a turn has what a switch leaves to it.
    steps = list(map(max, zip(*(host["steps"] for host in hosts), strict=True)))
    step = statistics.median(steps)
    late = statistics.median(max(0.0, first - step) for first in steps[::num_epochs])
    switch = statistics.median(map(max, zip(*(host["switches"] for host in hosts), strict=True))) + late
    phases = [host["received by phase"] for host in hosts]
    of_steps = sum(sum(phase.values()) - phase.get("repartition", 0) for phase in phases)
    gradients = sum(phase.get("gradients", 0) for phase in phases)
    ideal = 2 * (len(hosts) - 1) * hosts[0]["num_parameter_bytes"] * num_epochs
    return {
        "epoch": seconds / num_epochs,
        "step": step,
        "switch": switch,
        "switch share": switch / seconds,
        "epochs of a switch": num_epochs,
        "compute": max(host["compute"] for host in hosts),
        "wire": max(8 * max(host["of turn"].values()) / rate for host in hosts) / num_epochs,
        "MB": statistics.mean(host["of turn"]["received"] for host in hosts) / num_epochs / 1e6,
        "MB of switch": statistics.mean(phase.get("repartition", 0) for phase in phases) / num_epochs / 1e6,
        "no gradients": of_steps - gradients,
        "gradients over ideal": gradients / ideal,
    }


def measure_epochs(model: str, layers: int, num_epochs: int) -> dict[str, float]:
    """Returns after how many epochs `single` and the default reach 99% of the best validation score of `single`."""
    graph = load(SOURCES["small"])
    recipe = Recipe(MODELS[model].format(layers=layers, dropout=0.5), num_epochs, lr=0.01, evaluate_every=1)
    single = train(graph, "single", 1, recipe, seed=0)
    alone = train(graph, f"{DEFAULT}(partitioner=random)", NUM_HOSTS, recipe, seed=0)
    wanted = 0.99 * max(single.val)
    return {"exact": single.epochs_to(wanted), DEFAULT: alone.epochs_to(wanted), "val": max(single.val)}


def seconds_to(way: str, epochs: float, numbers: Mapping[str, float]) -> float:
    """Returns the seconds of so many epochs, each with the switch before it if there is one."""
    if way != DEFAULT or math.isinf(epochs):
        return epochs * numbers[f"{way}: epoch"]
    num_switches = math.ceil(epochs / numbers[f"{way}: epochs of a switch"])
    return epochs * numbers[f"{way}: step"] + num_switches * numbers[f"{way}: switch"]


class Tables:
    """The seconds and the gain; what they are made of; and the way to 99% of the best score."""

    def __init__(self) -> None:
        self._gains = make_table(
            "seconds per epoch over a whole super-epoch, four hosts of one thread on this machine",
            *("model, link", DEFAULT, SAME, METIS, "over same parts", "over metis", "switching"),
        )
        self._parts = make_table(
            "what an epoch is made of: seconds; megabytes that a host receives (of them for switching)",
            *("model, link", "way", "epoch", "compute", "wire", "MB", "switch MB", "step", "switch"),
        )
        self._to_99 = make_table(
            "to 99% of the best validation score of `single`: epochs (graph a tenth the size), and seconds",
            *("model, link", "exact", DEFAULT, f"{DEFAULT}, s", f"{SAME}, s", f"{METIS}, s"),
        )

    def add(self, cell: Cell, numbers: Mapping[str, float], needed: Mapping[str, float]) -> None:
        epochs = {way: numbers[f"{way}: epoch"] for way in cell.ways}
        self._gains.add_row(
            cell.name,
            *(f"{epochs[way]:.2f}" for way in (DEFAULT, SAME, METIS)),
            *(f"{epochs[way] / epochs[DEFAULT]:.1f}x" for way in (SAME, METIS)),
            f"{numbers[f'{DEFAULT}: switch share']:.1%}",
        )
        for way in cell.ways:
            shown = ("epoch", "compute", "wire", "MB", "MB of switch", "step", "switch")
            self._parts.add_row(cell.name, way, *(f"{numbers[f'{way}: {what}']:.2f}" for what in shown))
        counts = {DEFAULT: needed[DEFAULT], SAME: needed["exact"], METIS: needed["exact"]}
        self._to_99.add_row(
            cell.name,
            f"{needed['exact']:.0f}",
            f"{needed[DEFAULT]:.0f}",
            *(f"{seconds_to(way, counts[way], numbers):.1f}" for way in (DEFAULT, SAME, METIS)),
        )

    def show(self) -> None:
        for table in (self._gains, self._parts, self._to_99):
            console.print(table)


def run(benchmark: Benchmark) -> None:
    check_requirements()
    graph = "small" if benchmark.quick else "sbm"
    chosen = cells(benchmark.quick)
    tables, found, needed = Tables(), {}, {}
    for cell in chosen:
        found[cell] = benchmark.cell(cell.name, lambda c=cell: measure_cell(c, graph))
    for model, layers in dict.fromkeys((cell.model, cell.layers) for cell in chosen):
        needed[f"{model}-{layers}"] = benchmark.cell(
            f"{model}-{layers}, epochs", lambda m=model, n=layers: measure_epochs(m, n, CURVE_EPOCHS[benchmark.quick])
        )
    for cell in chosen:
        tables.add(cell, found[cell], needed[cell.kind])
    tables.show()
    benchmark.figures |= figures_of(found)
    benchmark.finish()


def figures_of(found: Mapping[Cell, Mapping[str, float]]) -> dict[str, float]:
    def gains(way: str, links: Sequence[str]) -> list[float]:
        return [
            numbers[f"{way}: epoch"] / numbers[f"{DEFAULT}: epoch"]
            for cell, numbers in found.items()
            if cell.link in links
        ]

    def largest(what: str, ways: Sequence[str]) -> float:
        return max(numbers[f"{w}: {what}"] for cell, numbers in found.items() for w in ways if w in cell.ways)

    alone = (DEFAULT, STORED, HANDED)
    same, metis = gains(SAME, SLOW), gains(METIS, ("100mbit",))
    figures = {
        "same parts, 100mbit and below: mean gain": statistics.mean(same),
        "same parts, 100mbit and below: best gain": max(same),
        "same parts, 100mbit and below: least gain": min(same),
        "metis parts, 100mbit: mean gain": statistics.mean(metis),
        "metis parts, 100mbit: least gain": min(metis),
        "switching share": largest("switch share", (DEFAULT,)),
        "switching share, moving chunks": largest("switch share", (STORED, HANDED)),
        "bytes of steps that are no gradients": largest("no gradients", alone),
        "gradient bytes over 2 (P - 1) models": largest("gradients over ideal", alone),
        "counters": max(numbers["counters"] for numbers in found.values()),
    }
    for link in sorted({cell.link for cell in found}):
        figures[f"same parts, {link}: mean gain"] = statistics.mean(gains(SAME, (link,)))
        figures[f"metis parts, {link}: mean gain"] = statistics.mean(gains(METIS, (link,)))
    return figures
