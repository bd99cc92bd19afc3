"""Memory of gradient_only.py: what a rank holds at its peak, by the number of ranks, against exact halo exchange.

Each rank is a process, started by the lab on links without a limit, that opens its chunks of a store, attaches SAGE-3
and trains for two epochs. Counted is by how much its resident memory grows from before the store is opened to its peak:
graph, features, activations, gradients, and rows of neighbours, remembered or exchanged; pages of the store's files
that it reads are among them, those of torch and compiled kernels are not. Shown is the largest of all ranks.
"""

import itertools
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from exchange import read_findings, stored
from gradient_only_rank import Plan, Way
from harness import Benchmark, Target, console, make_table
from laconic.lab import Lab, check_requirements

RANK_PROGRAM = Path(__file__).with_name("gradient_only_rank.py")
MODEL = "sage(hidden=256, layers=3, dropout=0.0)"
NUM_RANKS = (1, 2, 4, 8)
DEFAULT, EXCHANGE = "gradient_only", "exchange"
CHUNKS = ("random", "metis")


@dataclass(frozen=True)
class Row:
    strategy: str
    chunks: str

    @property
    def name(self) -> str:
        return f"{self.strategy}, {self.chunks} chunks"


ROWS = [Row(strategy, chunks) for chunks in CHUNKS for strategy in (DEFAULT, EXCHANGE)]


def targets(quick: bool) -> dict[str, Target]:
    """Twice the ranks, less memory each. Quick: a graph a tenth the size, of which a process's own noise is a share."""
    most = 1.0 if not quick else 1.1
    return {
        f"{row.name}: twice the ranks, memory times": Target(most, at_most=True)
        for row in ROWS
        if row.strategy == DEFAULT
    }


def measure(row: Row, num_ranks: int, graph: str) -> dict[str, float]:
    folder = stored(graph, row.chunks, num_parts=max(NUM_RANKS))
    plan = Plan(MODEL, {"only": Way(row.strategy, str(folder))}, links=[])
    with Lab(hosts=num_ranks, link="none") as lab:
        command = [sys.executable, str(RANK_PROGRAM), plan.to_text()]
        result = lab.run(command, environment={"OMP_NUM_THREADS": "1"}, capture=True)
    peaks = [host["peak bytes"] for host in read_findings(result)]
    return {"largest": max(peaks), "mean": statistics.mean(peaks)}


def run(benchmark: Benchmark) -> None:
    check_requirements()
    quick, graph = benchmark.quick, "small" if benchmark.quick else "sbm"
    counts = NUM_RANKS if not quick else NUM_RANKS[1:3]
    table = make_table(
        "memory that training adds to a rank at its peak, MiB (largest rank), SAGE-3, 256 wide",
        *("strategy, chunks", *(f"{count} rank{'s' if count > 1 else ''}" for count in counts)),
    )
    for row in ROWS:
        peaks = [
            benchmark.cell(f"{row.name}, {count} ranks", lambda r=row, n=count: measure(r, n, graph))["largest"]
            for count in counts
        ]
        table.add_row(row.name, *(f"{peak / 2**20:.0f}" for peak in peaks))
        figures = {f"{row.name}, {count} ranks, MiB": peak / 2**20 for count, peak in zip(counts, peaks, strict=True)}
        benchmark.figures |= figures
        worst = max(after / before for before, after in itertools.pairwise(peaks))
        benchmark.figures[f"{row.name}: twice the ranks, memory times"] = worst
    console.print(table)
    benchmark.finish()
