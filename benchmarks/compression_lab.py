"""Seconds of compression.py: four hosts of the lab, until the validation accuracy of full communication is reached.

Each host is one process of one thread with a random part of the graph; SAGE, 3 layers of 64, as for accuracy. All
contenders begin with the same weights and run the same number of epochs. The clock counts steps, as long as they took
on the slowest host, and stands still for scores. Wanted is 99% of the best validation accuracy that full communication
had; who did not reach it took longer than the whole run, which is then counted for others, and never for ours. Codec
time is what a host needs, in an epoch, to write and to read its messages; it is in the seconds already.
"""

import json
import math
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from compression_rank import run_alone
from exchange import NUM_HOSTS, read_findings, stored
from harness import Benchmark, Target, console, make_table
from laconic.lab import Lab, check_requirements

RANK_PROGRAM = Path(__file__).with_name("compression_rank.py")
METHODS = ("full", "paper", "ours")
LINKS = {True: ("100mbit",), False: ("100mbit", "1gbit")}
GRAPH = {True: "small", False: "debian"}
EPOCHS = {True: 10, False: 30}
Numbers = Mapping[str, float]


def targets(quick: bool) -> dict[str, Target]:
    """Quick: a small graph, few epochs and one link."""
    least = 1.0 if quick else 2.0
    return {f"{link}: gain over {other}": Target(least) for link in LINKS[quick][:1] for other in ("full", "paper")}


def run(benchmark: Benchmark) -> None:
    check_requirements()
    quick = benchmark.quick
    run_alone()
    graph = stored(GRAPH[quick], "random")
    table = make_table(
        f"{GRAPH[quick]}, {NUM_HOSTS} hosts, {EPOCHS[quick]} epochs: seconds to 99% of full's best validation accuracy",
        "link, contender",
        "seconds",
        "epochs",
        "seconds per epoch",
        "of them codec",
        "MB per epoch",
        "best val",
    )
    for link in LINKS[quick]:
        found = {
            method: benchmark.cell(f"{link}, {method}", lambda w=link, m=method: measure(graph, w, m, EPOCHS[quick]))
            for method in METHODS
        }
        wanted = 0.99 * max(score for _, score in scores(found["full"]).values())
        seconds = {}
        for method, numbers in found.items():
            epoch, seconds[method] = time_to(numbers, wanted)
            is_reached = math.isfinite(epoch)
            table.add_row(
                f"{link}, {method}",
                f"{seconds[method]:.1f}" if is_reached else f"> {whole_run(numbers):.1f}",
                f"{epoch:.0f}" if is_reached else f"> {EPOCHS[quick]}",
                f"{numbers['seconds per epoch']:.2f}",
                f"{numbers['codec seconds per epoch']:.3f}",
                f"{numbers['bytes per epoch'] / 1e6:.1f}",
                f"{100 * max(score for _, score in scores(numbers).values()):.1f}",
            )
            if is_reached:
                benchmark.figures[f"{link}, {method}: seconds"] = seconds[method]
            elif method != "ours":
                seconds[method] = whole_run(numbers)
            benchmark.figures[f"{link}, {method}: codec seconds per epoch"] = numbers["codec seconds per epoch"]
        for other in ("full", "paper"):
            benchmark.figures[f"{link}: gain over {other}"] = seconds[other] / seconds["ours"]
    console.print(table)
    benchmark.finish()


def measure(graph: Path, link: str, method: str, epochs: int) -> dict[str, float]:
    with Lab(hosts=NUM_HOSTS, link=link) as lab:
        command = [sys.executable, str(RANK_PROGRAM), json.dumps([str(graph), method, epochs])]
        result = lab.run(command, environment={"OMP_NUM_THREADS": "1"}, capture=True)
    hosts = read_findings(result)
    steps = list(map(max, zip(*(host["steps"] for host in hosts), strict=True)))
    numbers = {
        "seconds per epoch": statistics.median(steps),
        "codec seconds per epoch": max(host["codec seconds"] for host in hosts) / epochs,
        "bytes per epoch": sum(host["bytes"] for host in hosts) / epochs,
    }
    for epoch, score in hosts[0]["scores"]:
        numbers[f"seconds {epoch}"], numbers[f"score {epoch}"] = sum(steps[:epoch]), score
    return numbers


def scores(numbers: Numbers) -> dict[int, tuple[float, float]]:
    """Seconds and validation accuracy, by epoch."""
    epochs = [int(name.split()[1]) for name in numbers if name.startswith("score ")]
    return {epoch: (numbers[f"seconds {epoch}"], numbers[f"score {epoch}"]) for epoch in epochs}


def whole_run(numbers: Numbers) -> float:
    """Returns the seconds at the last score."""
    return max(seconds for seconds, _ in scores(numbers).values())


def time_to(numbers: Numbers, wanted: float) -> tuple[float, float]:
    """Returns epochs and seconds until a score was reached."""
    reached = ((epoch, seconds) for epoch, (seconds, score) in scores(numbers).items() if score >= wanted)
    return next(reached, (math.inf, math.inf))
