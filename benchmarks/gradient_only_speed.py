"""Speed of gradient_only.py: seconds per epoch in the lab, against exact halo exchange on the same and on METIS parts.

See gradient_only.py for what is measured and how.
"""

import itertools
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from curves import Recipe, train
from exchange import BEFORE_COMMIT, NUM_HOSTS, SOURCES, read_findings, stored
from gradient_only_rank import LINK_MARK, OnLink, Plan, Way
from harness import ROOT, Benchmark, Target, console, make_table, tree_of
from laconic.cached.intervals import Intervals
from laconic.datasets import load
from laconic.lab import Lab, Traffic, check_requirements, parse_link

RANK_PROGRAM = "benchmarks/gradient_only_rank.py"
DEFAULT, SAME, METIS = "gradient_only", "exchange, same parts", "exchange, metis"
# The same setting on METIS parts, shown at 100 mbit; and rows that stand still in place of sums.
ON_METIS, ROWS = "gradient_only, metis", "keep=rows"
# Exact exchange as other systems have it: rows of all neighbours travel.
HALO, HALO_METIS = "halo exchange, same parts", "halo exchange, metis"
# The default of the commit before the engine was one, on the same parts.
BEFORE = "before"
COLUMNS = (BEFORE, DEFAULT, SAME, ROWS, HALO, ON_METIS, METIS, HALO_METIS)
# Chunks that move (grappa) instead of historical neighbours: shown for what a switch of chunks costs.
STORED, HANDED = "moving chunks, storage", "moving chunks, peers"
WAYS = {
    DEFAULT: ("gradient_only", "random"),
    # Told of the link at which gradients alone should win: where the rate changes, the choice stays.
    SAME: ("exchange(link_mbit=100)", "random"),
    METIS: ("exchange(link_mbit=100)", "metis"),
    HALO: ("exchange(edges=destination, reach=0)", "random"),
    HALO_METIS: ("exchange(edges=destination, reach=0)", "metis"),
    ON_METIS: ("gradient_only", "metis"),
    ROWS: ("gradient_only(keep=rows)", "random"),
    STORED: ("grappa(variable=1, supply=storage)", "random"),
    HANDED: ("grappa(variable=1, supply=peers)", "random"),
}
MODELS = {
    "GCN": "gcn(hidden={hidden}, layers={layers}, dropout={dropout})",
    "SAGE": "sage(hidden={hidden}, layers={layers}, dropout={dropout})",
    "GAT": "gat(hidden={hidden}, heads=4, layers={layers}, dropout={dropout})",
}
WIDTH, CURVE_WIDTH = 256, 64
# In the order in which they are measured: what is needed once travels over the fastest.
LINKS = ("1gbit", "100mbit", "25mbit")
SLOW = LINKS[1:]
# Where an epoch of exact exchange takes minutes.
AT_25MBIT = (("SAGE", 2), ("SAGE", 3), ("SAGE", 4), ("GCN", 3))
# Epochs in which to reach 99% of the best score: SAGE-3 needs some 30. Quick: so few that the best may be yet to come.
CURVE_EPOCHS, EVALUATE_EVERY = {True: 40, False: 60}, 2


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
        ways = [DEFAULT, SAME, METIS]
        is_fixed, at_100mbit = self.model != "GAT", self.link == "100mbit"
        # Attention keeps rows by default, and its exchange is halo exchange.
        ways += [ROWS] if self.link in SLOW and is_fixed else []
        ways += [HALO, HALO_METIS] if at_100mbit and is_fixed else []
        # An epoch takes minutes.
        ways += [HALO] if (self.kind, self.link) == ("GCN-3", "25mbit") else []
        if at_100mbit:
            ways += [ON_METIS]
            ways += [STORED, HANDED] if (self.model, self.layers) == ("SAGE", 3) else []
        return ways

    def is_slower(self, numbers: Mapping[str, float]) -> bool:
        """Whether the default is slower than rows that stand still, and than exact exchange on the same parts."""
        others = [numbers[f"{way}: epoch"] for way in (SAME, ROWS) if way in self.ways]
        return self.link in SLOW and numbers[f"{DEFAULT}: epoch"] > max(others)


def cells(model: str, layers: int, quick: bool) -> list[Cell]:
    """Returns what is measured of a model in one run of the hosts."""
    if quick or (model, layers) in AT_25MBIT:
        links = LINKS
    else:
        # Attention computes longest, and what it sends is what GCN sends.
        links = LINKS[:2] if model != "GAT" else LINKS[1:2]
    return [Cell(model, layers, link) for link in links]


def models(quick: bool) -> list[tuple[str, int]]:
    return [("SAGE", 3)] if quick else [(model, layers) for layers in (3, 2, 4) for model in MODELS]


def targets(quick: bool) -> dict[str, Target]:
    """Quick: a graph a tenth the size and one turn: gradients and what a step costs beside its rows weigh more."""
    return {
        "over halo exchange, same parts, 100mbit and below: mean gain": Target(4.0 if not quick else 2.0),
        "over halo exchange, same parts, 100mbit and below: best gain": Target(13.0 if not quick else 2.0),
        "over halo exchange, metis parts, 100mbit: mean gain": Target(2.0 if not quick else 0.8),
        "switching share": Target(0.05, at_most=True),
        "switching share, moving chunks": Target(0.05 if not quick else 0.1, at_most=True),
        "cells slower than keep=rows and exchange": Target(0, at_most=True),
        "time of the default over before: most": Target(1.1 if not quick else 1.3, at_most=True),
        "bytes of steps that are no gradients": Target(0, at_most=True),
        "gradient bytes over 2 (P - 1) models": Target(1.001, at_most=True),
        "counters": Target(0.03 if not quick else 0.05, at_most=True),
    }


def measure_model(chosen: Sequence[Cell], graph: str) -> dict[str, float]:
    """Returns the numbers of a model on all its links, each named "<cell>: <way>: <what>"."""
    every_way = list(dict.fromkeys(way for cell in chosen for way in cell.ways))
    ways = {name: Way(WAYS[name][0], str(stored(graph, WAYS[name][1]))) for name in every_way}
    model = MODELS[chosen[0].model].format(hidden=WIDTH, layers=chosen[0].layers, dropout=0.0)
    links = [OnLink(cell.link, cell.ways) for cell in chosen]
    alone = [OnLink(cell.link, [BEFORE]) for cell in chosen]
    with Lab(hosts=NUM_HOSTS, link=chosen[0].link) as lab:
        hosts, counters = run_plan(lab, ROOT, model, ways, links)
        hosts_before, _ = run_plan(lab, tree_of(BEFORE_COMMIT), model, {BEFORE: ways[DEFAULT]}, alone)
    numbers = {}
    for cell, (before, after) in zip(chosen, itertools.pairwise(counters), strict=True):
        of_cell = {"counters": difference_of_counters(cell.link, hosts, before, after)}
        for way in (*cell.ways, BEFORE):
            found = of_one_way(hosts if way != BEFORE else hosts_before, cell.link, way)
            of_cell |= {f"{way}: {what}": value for what, value in found.items()}
        numbers |= {f"{cell.name}: {what}": value for what, value in of_cell.items()}
    return numbers


def run_plan(
    lab: Lab, tree: Path, model: str, ways: Mapping[str, Way], links: Sequence[OnLink]
) -> tuple[list[Mapping], list[Sequence[Traffic]]]:
    """Runs the rank program of a tree; returns what each rank found, and the interfaces' counts around each link."""
    lab.set_link(links[0].link)
    counters = [lab.traffic()]
    with tempfile.TemporaryDirectory() as folder:

        def follow(host: int, stream: str, line: str) -> None:
            if line.startswith(LINK_MARK):
                counters.append(lab.traffic())
                link = line.removeprefix(LINK_MARK)
                lab.set_link(link)
                (Path(folder) / link).touch()

        plan = Plan(model, dict(ways), list(links), folder).to_text()
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree / "src")}
        command = [sys.executable, str(tree / RANK_PROGRAM), plan]
        hosts = read_findings(lab.run(command, environment=environment, capture=True, on_output=follow))
    return hosts, [*counters, lab.traffic()]


def difference_of_counters(
    link: str, hosts: Sequence[Mapping], before: Sequence[Traffic], after: Sequence[Traffic]
) -> float:
    """Returns the largest difference, over hosts, between what a ledger and what an interface counted as received.

    Received, for what a full queue of a slow link drops is sent again, and counted at the sender alone.
    """
    return max(
        abs((late - early).received_bytes / host["received"][link] - 1)
        for host, early, late in zip(hosts, before, after, strict=True)
    )


def of_one_way(hosts: Sequence[Mapping], link: str, way: str) -> dict[str, float]:
    constants = hosts[0]["of ways"][way]
    turns = [host["on links"][link][way] for host in hosts]
    num_epochs = constants["super-epoch"]
    # A step takes as long as on the slowest host. The first after a switch has what that leaves to it.
    steps = list(map(max, zip(*(turn["steps"] for turn in turns), strict=True)))
    step = statistics.median(steps[1:] or steps)
    switch = 0.0
    if num_epochs > 1:
        switch = max(turn["switch"] for turn in turns) + max(0.0, sum(steps) - len(steps) * step)
    of_switch, of_steps, gradients = (
        [turn[f"bytes of {what}"] for turn in turns] for what in ("switch", "steps", "gradients")
    )
    per_epoch = [
        {side: early[side] / num_epochs + late[side] / len(steps) for side in early}
        for early, late in zip(of_switch, of_steps, strict=True)
    ]
    rate = parse_link(link)
    assert rate is not None
    received = {what: [each["received"] for each in of] for what, of in (("g", gradients), ("s", of_steps))}
    return {
        "epoch": step + switch / num_epochs,
        "step": step,
        "switch": switch,
        "switch share": switch / (switch + num_epochs * step),
        "epochs of a switch": num_epochs,
        "is gradual": constants["is gradual"],
        "compute": max(host["of ways"][way]["compute"] for host in hosts),
        "wire": max(8 * max(each.values()) / rate for each in per_epoch),
        "MB": statistics.mean(each["received"] for each in per_epoch) / 1e6,
        "MB of switch": statistics.mean(each["received"] for each in of_switch) / num_epochs / 1e6,
        "no gradients": sum(received["s"]) - sum(received["g"]),
        "gradients over ideal": sum(received["g"]) / (2 * (len(hosts) - 1) * constants["model bytes"] * len(steps)),
    }


def measure_epochs(model: str, layers: int, num_epochs: int) -> dict[str, float]:
    """Returns after how many epochs `single` and the default reach 99% of the best validation score of `single`."""
    graph = load(SOURCES["small"])
    spec = MODELS[model].format(hidden=CURVE_WIDTH, layers=layers, dropout=0.5)
    recipe = Recipe(spec, num_epochs, lr=0.01, evaluate_every=EVALUATE_EVERY)
    single = train(graph, "single", 1, recipe, seed=0)
    alone = train(graph, f"{DEFAULT}(partitioner=random)", NUM_HOSTS, recipe, seed=0)
    wanted = 0.99 * max(single.val)
    return {"exact": single.epochs_to(wanted), DEFAULT: alone.epochs_to(wanted), "val": max(single.val)}


def seconds_to(way: str, epochs: float, numbers: Mapping[str, float]) -> float:
    """Returns the seconds of so many epochs, each with the switch before it if there is one."""
    if way != DEFAULT or math.isinf(epochs):
        return epochs * numbers[f"{way}: epoch"]
    intervals = Intervals(int(numbers[f"{way}: epochs of a switch"]), bool(numbers[f"{way}: is gradual"]))
    num_switches = intervals.number(int(epochs)) + 1
    return epochs * numbers[f"{way}: step"] + num_switches * numbers[f"{way}: switch"]


class Tables:
    """The seconds and the gain; what they are made of; and the way to 99% of the best score."""

    def __init__(self) -> None:
        self._gains = make_table(
            "seconds per epoch over a whole super-epoch, four hosts of one thread on this machine",
            *("model, link", *COLUMNS, "gain, same parts", "gain, metis", "switching"),
        )
        self._parts = make_table(
            "what an epoch is made of: seconds; megabytes that a host receives (of them for switching)",
            *("model, link", "way", "epoch", "compute", "wire", "MB", "switch MB", "step", "switch"),
        )
        self._to_99 = make_table(
            "to 99% of the best validation score of `single`: epochs (a tenth of the graph, 64 wide), and seconds",
            *("model, link", "exact", DEFAULT, f"{DEFAULT}, s", f"{SAME}, s", f"{METIS}, s"),
        )

    def add(self, cell: Cell, numbers: Mapping[str, float], needed: Mapping[str, float]) -> None:
        epochs = {way: numbers[f"{way}: epoch"] for way in (BEFORE, *cell.ways)}
        has_both = ON_METIS in epochs
        self._gains.add_row(
            cell.name,
            *(f"{epochs[way]:.2f}" if way in epochs else "-" for way in COLUMNS),
            f"{epochs[SAME] / epochs[DEFAULT]:.1f}x",
            f"{epochs[METIS] / epochs[ON_METIS]:.1f}x" if has_both else "-",
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
    quick, graph = benchmark.quick, "small" if benchmark.quick else "sbm"
    tables, found, needed = Tables(), {}, {}
    for model, layers in models(quick):
        chosen = cells(model, layers, quick)
        numbers = benchmark.cell(f"{model}-{layers}", lambda c=chosen: measure_model(c, graph))
        for cell in chosen:
            prefix = f"{cell.name}: "
            found[cell] = {key.removeprefix(prefix): n for key, n in numbers.items() if key.startswith(prefix)}
    for model, layers in models(quick):
        needed[f"{model}-{layers}"] = benchmark.cell(
            f"{model}-{layers}, epochs", lambda m=model, n=layers: measure_epochs(m, n, CURVE_EPOCHS[quick])
        )
    for cell in sorted(found, key=lambda cell: -LINKS.index(cell.link)):
        tables.add(cell, found[cell], needed[cell.kind])
    tables.show()
    benchmark.figures |= figures_of(found)
    benchmark.finish()


def figures_of(found: Mapping[Cell, Mapping[str, float]]) -> dict[str, float]:
    def gains(way: str, of: str, links: Sequence[str] = LINKS) -> list[float]:
        """Returns how many times as fast `of` is as `way`, in each cell that has both."""
        return [
            numbers[f"{way}: epoch"] / numbers[f"{of}: epoch"]
            for cell, numbers in found.items()
            if cell.link in links and {way, of} <= {BEFORE, *cell.ways}
        ]

    def largest(what: str, ways: Sequence[str]) -> float:
        return max(numbers[f"{w}: {what}"] for cell, numbers in found.items() for w in ways if w in cell.ways)

    # The exchange of attention is halo exchange.
    attention = {cell: numbers for cell, numbers in found.items() if cell.model == "GAT"}
    over_halo, over_halo_metis = (
        gains(halo, of) + [numbers[f"{way}: epoch"] / numbers[f"{of}: epoch"] for numbers in attention.values()]
        for halo, way, of in ((HALO, SAME, DEFAULT), (HALO_METIS, METIS, ON_METIS))
    )
    alone = (DEFAULT, ON_METIS, ROWS, STORED, HANDED)
    same, on_metis = gains(SAME, DEFAULT, SLOW), gains(METIS, ON_METIS)
    figures = {
        "over halo exchange, same parts, 100mbit and below: mean gain": statistics.mean(over_halo),
        "over halo exchange, same parts, 100mbit and below: best gain": max(over_halo),
        "over halo exchange, metis parts, 100mbit: mean gain": statistics.mean(over_halo_metis),
        "same parts, 100mbit and below: mean gain": statistics.mean(same),
        "same parts, 100mbit and below: best gain": max(same),
        "same parts, 100mbit and below: least gain": min(same),
        "metis parts, 100mbit: mean gain": statistics.mean(on_metis),
        "metis parts, 100mbit: least gain": min(on_metis),
        "cells slower than keep=rows and exchange": sum(cell.is_slower(numbers) for cell, numbers in found.items()),
        "time of the default over before: most": max(gains(DEFAULT, BEFORE)),
        "time of the default over before: mean": statistics.mean(gains(DEFAULT, BEFORE)),
        "time of the default over keep=rows: mean": statistics.mean(gains(DEFAULT, ROWS)),
        "switching share, metis parts": largest("switch share", (ON_METIS,)),
        "switching share": largest("switch share", (DEFAULT,)),
        "switching share, keep=rows": largest("switch share", (ROWS,)),
        "switching share, moving chunks": largest("switch share", (STORED, HANDED)),
        "bytes of steps that are no gradients": largest("no gradients", alone),
        "gradient bytes over 2 (P - 1) models": largest("gradients over ideal", alone),
        "counters": max(numbers["counters"] for numbers in found.values()),
    }
    for link in sorted({cell.link for cell in found}):
        figures[f"same parts, {link}: mean gain"] = statistics.mean(gains(SAME, DEFAULT, (link,)))
        figures[f"random against metis parts, {link}: mean gain"] = statistics.mean(gains(METIS, DEFAULT, (link,)))
    return figures
