"""Exact training on four hosts of the lab, against its bound, the commit before, and SAR.

    sudo LACONIC_DATA=folder python benchmarks/exchange.py        # some 45 minutes; resumes
    sudo python benchmarks/exchange.py --quick                    # a minute and a half
    sudo python benchmarks/exchange.py --only "debian, metis"     # some cells; keeps nothing

The estimate: 18 cells of 75 to 200 seconds. In each, starting a contender's four processes takes 10
seconds, and `before` at 100 mbit has three epochs of up to 22 seconds. The first run on a machine
takes two minutes more: it checks out the commit before in results/trees and compiles its kernels.
Run it alone on the machine.

Each host has one thread and trains models of 3 layers, 256 wide: forward, loss, backward, Adam, no
evaluation. Contenders, each in processes of its own, take turns within a cell, epoch by epoch
(exchange_turns.py):

    before        rank program and library of the commit before the engine was one (bfe03fd)
    default       exchange(link_mbit=<rate of the link>); an unshaped link is given as 10 gbit
    cover_reach   exchange(edges=cover, reach=1); on debian, where SAR was measured

An epoch takes as long as on the slowest host; the median is shown. The bytes of an epoch are those
that a host receives, gradients included: the mean over hosts, and the host that receives most.

The bound of an epoch is compute + wire - overlap (exchange_bound.py), for the host for which that
is the most:
- compute: the same epoch of all four processes at the same time, over a transport that moves
  nothing (median). Rows that are recomputed are part of it;
- wire: the bytes of payload that the host receives in an epoch, or sends, whichever is more, at the
  rate of its link. Headers, some 4% at this packet size, are left out;
- overlap: the products that need no other rank run while rows and partial sums travel. Their time
  is what passes in the compute-only epoch between the start of an exchange and the wait for it.
"Over steps" is the same with the larger way of each exchange by itself: bytes that are sent forward
cannot make room for bytes that come backward. An unshaped link has no rate, so its bound would be
compute alone; it is shown, without a target. There the default is compared with `before`, epoch by
epoch in the same round; the median of their ratios may be 1.05, which leaves 5% for the noise of
the machine.

Setup is all that is done once: reading chunks, agreeing on lists, the cover, building operators,
the first layer's constants (what the first epoch takes longer), as a share of a run of 100 epochs.
"Counters" is the largest difference, over hosts, between what a contender's ledger counted in the
whole run and what the host's interface did in its turns.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exchange_bound import bound_of
from exchange_rank import STRATEGY, measure
from exchange_tables import Tables
from harness import RESULTS, ROOT, Benchmark, Target, console, tree_of
from laconic.comm import Communicator, Ledger, run_ranks
from laconic.datasets import load
from laconic.lab import Lab, RunResult, Traffic, check_requirements, parse_link
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.specs import parse_spec
from laconic.store import is_store, open_store, write_store

BEFORE_COMMIT = "bfe03fd"
BEFORE, DEFAULT, COVER_REACH = "before", "default", "cover_reach"
NUM_HOSTS = 4
PARTITIONS = ("random", "metis")
LINKS = ("none", "1gbit", "100mbit")
# What the default is told of a link that has no rate.
UNSHAPED_MBIT = 10_000
# Sizes of ogbn-arxiv; METIS finds the communities, as it does there.
ARXIV = "sbm(nodes={nodes}, classes=40, features=128, degree=13.5, homophily=0.9, degree_spread=1.0)"
SOURCES = {
    "sbm": ARXIV.format(nodes=170_000),
    "medium": ARXIV.format(nodes=60_000),
    "small": ARXIV.format(nodes=17_000),
    "debian": "debian",
}
# Enough turns to tell 5% where epochs are compared; few where an epoch of `before` takes 20 seconds.
NUM_EPOCHS = {"none": 9, "1gbit": 5, "100mbit": 4}
NUM_EPOCHS_BEFORE = {**NUM_EPOCHS, "100mbit": 2}
NUM_EPOCHS_QUICK = 3
TURNS_PROGRAM = Path(__file__).with_name("exchange_turns.py")

# What SAR, the exact peer, needs on debian with 4 parts, SAGE 128-256-256-53, one thread a host: bytes that a host
# receives in an epoch (its METIS parts are DGL's), and seconds. Constants: taken once, in the same lab on a machine of
# the same kind (2 cores), not measured here.
SAR_BYTES = {"random": 195e6, "metis": 50e6}
SAR_SECONDS = {
    "random": {"none": 2.5, "1gbit": 4.4, "100mbit": 25.0},
    "metis": {"none": 1.9, "1gbit": 2.9, "100mbit": 10.1},
}


@dataclass(frozen=True)
class Cell:
    graph: str
    partition: str
    model: str
    link: str

    @property
    def name(self) -> str:
        return f"{self.graph}, {self.partition}, {self.model}, {self.link}"

    @property
    def strategies(self) -> dict[str, str]:
        """The strategy of each contender of this tree."""
        rate = parse_link(self.link)
        link_mbit = UNSHAPED_MBIT if rate is None else rate // 10**6
        strategies = {DEFAULT: f"{STRATEGY}(link_mbit={link_mbit})"}
        if self.graph == "debian" or (self.graph, self.partition) == ("small", "random"):
            strategies[COVER_REACH] = f"{STRATEGY}(edges=cover, reach=1)"
        return strategies


def cells(quick: bool) -> list[Cell]:
    if quick:
        return [Cell("small", partition, "sage", "100mbit") for partition in PARTITIONS]
    kinds = [("debian", "sage"), ("sbm", "sage"), ("sbm", "gcn")]
    return [Cell(graph, partition, model, link) for graph, model in kinds for partition in PARTITIONS for link in LINKS]


def targets(quick: bool) -> dict[str, Target]:
    """Quick: a graph a tenth the size, where what an exchange costs beside its bytes weighs more, and few epochs."""
    wanted = {"rows not as predicted": Target(0, at_most=True), "setup share": Target(0.05, at_most=True)}
    for cell in cells(quick):
        wanted[f"{cell.name}: counters"] = Target(0.03 if not quick else 0.05, at_most=True)
        if cell.link == "none":
            wanted[f"{cell.name}: default over before"] = Target(1.05, at_most=True)
        for contender in cell.strategies if cell.link != "none" else ():
            wanted[f"{cell.name}, {contender}: over bound"] = Target(1.2 if not quick else 1.4, at_most=True)
    if quick:
        for cell in cells(quick):
            wanted[f"{cell.name}: default over before"] = Target(0.8, at_most=True)
            if COVER_REACH in cell.strategies:
                # 0.163 by count: 8,942 vectors of a minimum cover, 40 wide, each way, and the gradients.
                wanted[f"{cell.name}: cover_reach's bytes over before's"] = Target(0.18, at_most=True)
        return wanted
    for partition, share in {"random": 0.12, "metis": 0.08}.items():
        wanted[f"debian, {partition}: bytes over SAR"] = Target(share, at_most=True)
    for partition, gains in {"random": (1.0, 1.8, 4.0), "metis": (1.0, 1.7, 3.5)}.items():
        for link, gain in zip(LINKS, gains, strict=True):
            wanted[f"debian, {partition}, {link}: gain over SAR"] = Target(gain)
    return wanted


def stored(graph: str, partition: str, num_parts: int = NUM_HOSTS) -> Path:
    """Returns the store of a graph in so many parts, written now or by an earlier run."""
    folder = RESULTS / "stores" / (f"{graph}-{partition}" + (f"-{num_parts}" if num_parts != NUM_HOSTS else ""))
    made_of = {"source": SOURCES[graph], "partitioner": partition}
    if is_store(folder):
        provenance = open_store(folder).manifest.provenance
        if all(provenance.get(key) == value for key, value in made_of.items()):
            return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".gitignore").write_text("*\n")
    data = load(SOURCES[graph])
    parts = assign_parts(data, parse_spec(partition, PARTITIONERS, family="partitioner"), num_parts, seed=0)
    write_store(data, parts, folder, num_parts=num_parts, provenance=made_of, overwrite=True)
    return folder


def measure_cell(cell: Cell, quick: bool) -> dict[str, dict[str, Any]]:
    """Returns the numbers of each contender."""
    folder = str(stored(cell.graph, cell.partition))
    num_epochs, num_before = (
        (NUM_EPOCHS_QUICK,) * 2 if quick else (each[cell.link] for each in (NUM_EPOCHS, NUM_EPOCHS_BEFORE))
    )
    plan = {BEFORE: (str(tree_of(BEFORE_COMMIT)), [folder, cell.model, str(num_before)])}
    for name, strategy in cell.strategies.items():
        plan[name] = (str(ROOT), [folder, cell.model, str(num_epochs), strategy])
    command = [sys.executable, str(TURNS_PROGRAM), json.dumps(plan)]
    with Lab(hosts=NUM_HOSTS, link=cell.link) as lab:
        result = lab.run(command, environment={"OMP_NUM_THREADS": "1"}, capture=True)
    hosts = [read_findings(result, host) for host in range(NUM_HOSTS)]
    numbers = {}
    for name in plan:
        ranks = hosts[0][name]["ranks"]
        numbers[name] = evaluate(ranks, [Traffic(**host[name]["traffic"]) for host in hosts])
        if name != BEFORE:
            numbers[name] |= slowest_bound(ranks, parse_link(cell.link))
    return numbers


def read_findings(result: RunResult, host: int = 0) -> Any:
    """Returns what a host printed last."""
    failed = result.first_failed
    if failed is not None:
        raise RuntimeError(f"Host {failed.host} ended with {failed.exit_code}:\n{failed.stderr}")
    return json.loads(result.hosts[host].stdout.splitlines()[-1])


def difference_of_counters(rank: Mapping, traffic: Traffic) -> float:
    """Returns the share by which a rank's ledger and its host's interface differ.

    TCP sends some packets twice. On an unshaped link the receiver counts both; on a shaped one the
    first may have been dropped before the sender's interface counted it. So one of two counts is
    right, and the nearer is taken: bytes received, or sent without the repetitions.
    """
    seen = {"received": traffic.received_bytes, "sent": traffic.sent_once_bytes}
    return min(abs(num_bytes / rank["of run"][way] - 1) for way, num_bytes in seen.items())


def evaluate(ranks: Sequence[Mapping], traffic: Sequence[Traffic]) -> dict[str, Any]:
    """Returns the numbers of a contender from what each rank found and what the host's interface counted."""
    epochs = list(map(max, zip(*(rank["epochs"] for rank in ranks), strict=True)))
    epoch = statistics.median(epochs)
    setup = max(rank["setup"] for rank in ranks) - epoch
    received = [rank["of epoch"]["received"] for rank in ranks]
    return {
        "epochs": epochs,
        "epoch": epoch,
        "compute": max(statistics.median(rank["computes"]) for rank in ranks),
        "received bytes": statistics.mean(received),
        "received by the busiest": max(received),
        "halo bytes": statistics.mean(sum(each["received"] for each in rank["exchanges"]) for rank in ranks),
        "setup": setup,
        "setup share": setup / (setup + 100 * epoch),
        "counters": max(map(difference_of_counters, ranks, traffic)),
        "not as predicted": sum(rank["num_wrong"] for rank in ranks),
        "choice": ranks[0].get("choice", ""),
    }


def slowest_bound(ranks: Sequence[Mapping], rate: int | None) -> dict[str, float]:
    """Returns the bound, and its parts, of the host for which it is the most."""
    bounds = [bound_of(rank, rate) for rank in ranks]
    return {
        **max(bounds, key=lambda numbers: numbers["bound"]),
        "bound in steps": max(numbers["bound in steps"] for numbers in bounds),
    }


def compile_kernels() -> None:
    """Leaves all kernels that a rank uses on disk, compiled: that is done once on a machine, and is no run's setup."""
    before = tree_of(BEFORE_COMMIT)
    subprocess.run(
        [sys.executable, "-c", "import exchange; exchange.compile_kernels()"],
        cwd=before / "benchmarks",
        env={**os.environ, "PYTHONPATH": str(before / "src")},
        check=True,
    )
    graph = load("sbm(nodes=60, classes=3, features=8)")
    every_cell = [cell for quick in (True, False) for cell in cells(quick)]
    for model, strategy in {(cell.model, text) for cell in every_cell for text in cell.strategies.values()}:

        def run(transport, model=model, strategy=strategy):
            measure(Communicator(transport, Ledger(transport.rank)), graph, model, 1, strategy)

        run_ranks(2, run)


def main() -> None:
    benchmark = Benchmark.from_command_line(
        "exchange",
        "Exact training on four hosts of the lab.",
        {quick: targets(quick) for quick in (True, False)},
        can_choose_cells=True,
    )
    check_requirements()
    quick = benchmark.quick
    wanted = [cell for cell in cells(quick) if benchmark.wants(cell.name)]
    if not wanted:
        sys.exit(f"No cell has {benchmark.only!r} in its name. Cells: {'; '.join(cell.name for cell in cells(quick))}")
    compile_kernels()
    for graph in dict.fromkeys(cell.graph for cell in wanted):
        # Before the long work: debian needs LACONIC_DATA.
        stored(graph, "random")
    tables = Tables()
    for cell in wanted:
        numbers = benchmark.cell(cell.name, lambda c=cell: measure_cell(c, quick))
        note(benchmark, cell, numbers)
        sar = (SAR_SECONDS[cell.partition][cell.link], SAR_BYTES[cell.partition]) if cell.graph == "debian" else None
        tables.add(cell.name, numbers, sar)
        seconds = ", ".join(f"{name} {of_one['epoch']:.2f} s" for name, of_one in numbers.items())
        console.print(f"{cell.name}: {seconds}")
    tables.show()
    benchmark.finish()


def note(benchmark: Benchmark, cell: Cell, numbers: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds a cell's figures: its own, and the worst of all cells."""
    figures = benchmark.figures
    before, default = numbers[BEFORE], numbers[DEFAULT]
    figures[f"{cell.name}: counters"] = max(of_one["counters"] for of_one in numbers.values())
    # Where `before` has fewer epochs, of those rounds in which it had one.
    ratios = [ours / theirs for ours, theirs in zip(default["epochs"], before["epochs"], strict=False)]
    figures[f"{cell.name}: default over before"] = statistics.median(ratios)
    for name, of_one in numbers.items():
        figures[f"{cell.name}, {name}: seconds"] = of_one["epoch"]
        figures[f"{cell.name}, {name}: MB received"] = of_one["received bytes"] / 1e6
        figures[f"{cell.name}, {name}: MB received by the busiest"] = of_one["received by the busiest"] / 1e6
        figures[f"{cell.name}, {name}: setup seconds"] = of_one["setup"]
        if name != BEFORE:
            figures[f"{cell.name}, {name}: over bound"] = of_one["epoch"] / of_one["bound"]
            figures[f"{cell.name}, {name}: over steps"] = of_one["epoch"] / of_one["bound in steps"]
            figures["setup share"] = max(figures.get("setup share", 0.0), of_one["setup share"])
        figures["rows not as predicted"] = figures.get("rows not as predicted", 0) + of_one["not as predicted"]
    benchmark.notes[f"{cell.name}: default chose"] = default["choice"]
    if COVER_REACH in numbers:
        bytes_of_cover = numbers[COVER_REACH]["received bytes"]
        figures[f"{cell.name}: cover_reach's bytes over before's"] = bytes_of_cover / before["received bytes"]
    if cell.graph == "debian":
        figures[f"debian, {cell.partition}: bytes over SAR"] = bytes_of_cover / SAR_BYTES[cell.partition]
        # Without sums of gradients, which SAR's count may leave out.
        figures[f"debian, {cell.partition}: halo bytes over SAR"] = (
            numbers[COVER_REACH]["halo bytes"] / SAR_BYTES[cell.partition]
        )
        figures[f"debian, {cell.partition}, {cell.link}: gain over SAR"] = (
            SAR_SECONDS[cell.partition][cell.link] / default["epoch"]
        )


if __name__ == "__main__":
    sys.exit(main())
