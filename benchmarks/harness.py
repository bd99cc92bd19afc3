"""What all benchmarks share: contenders side by side in one run, cells that resume, a table, and the closing JSON line.

A benchmark is a list of cells. Each cell gives figures; what a cell found is kept in results/<name>.partial.jsonl until
the whole run is done, so that a run that was stopped goes on where it was. The closing line is
{"benchmark": ..., "figures": {name: number}, "targets": {name: number}, "missed": [names]}; some have "notes", too.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Target:
    """What a figure should reach: at least `bound`, or at most."""

    bound: float
    at_most: bool = False

    def is_missed(self, value: float) -> bool:
        # Written so that a NaN misses.
        return not (value <= self.bound if self.at_most else value >= self.bound)


@dataclass
class Benchmark:
    """One benchmark run: `cell` runs or recalls a cell, `finish` prints the closing line.

    Args:
        name: of the benchmark, and of its file in results/.
        quick: whether it is the version of about a minute.
        targets: by the name of the figure.
        only: part of the names of cells; others are left out, and nothing is kept. Empty: all cells.
        figures: filled by the benchmark.
        notes: words for a reader of the results, by name; filled by the benchmark.
    """

    name: str
    quick: bool
    targets: Mapping[str, Target]
    only: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def from_command_line(
        name: str,
        description: str,
        targets: Mapping[bool, Mapping[str, Target]],
        *,
        parts: Sequence[str] = (),
        can_choose_cells: bool = False,
    ) -> "Benchmark":
        """Returns the run that the command line asks for.

        Args:
            targets: by whether it is a quick run.
            parts: further flags, of which one may be given; the caller reads them.
            can_choose_cells: whether there is `--only`; the caller asks `wants`.
        """
        parser = argparse.ArgumentParser(description=description)
        one_of = parser.add_mutually_exclusive_group()
        for part in parts:
            one_of.add_argument(f"--{part}", action="store_true", help=f"the part of the benchmark on {part}")
        parser.add_argument("--quick", action="store_true", help="about a minute: at least one cell per figure")
        parser.add_argument("--fresh", action="store_true", help="forget the cells of a run that was stopped")
        if can_choose_cells:
            parser.add_argument(
                "--only", default="", metavar="TEXT", help="cells with TEXT in their name; keeps nothing"
            )
        arguments = parser.parse_args()
        _run_with_our_environment()
        only = arguments.only if can_choose_cells else ""
        benchmark = Benchmark(name, arguments.quick, targets[arguments.quick], only)
        if arguments.fresh and not only:
            benchmark._partial.unlink(missing_ok=True)
        return benchmark

    @property
    def _partial(self) -> Path:
        return RESULTS / f"{self.name}{'.quick' if self.quick else ''}.partial.jsonl"

    def wants(self, name: str) -> bool:
        """Whether the command line asks for a cell."""
        return self.only in name

    def cell(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the cell's numbers, measured now or by the run that was stopped before."""
        if self.only:
            return measure()
        known = self._known(name)
        if known is not None:
            return known
        started = time.monotonic()
        numbers = measure()
        seconds = round(time.monotonic() - started, 1)
        RESULTS.mkdir(exist_ok=True)
        row = {"cell": name, "code": _code_version(), "seconds": seconds, "numbers": numbers}
        with self._partial.open("a") as file:
            file.write(json.dumps(row) + "\n")
        _progress.print(f"{time.strftime('%H:%M:%S')} {name}: {seconds} s")
        return numbers

    def is_known(self, name: str) -> bool:
        """Whether the run that was stopped before has measured a cell."""
        return self._known(name) is not None

    def _known(self, name: str) -> dict[str, Any] | None:
        if self._partial.exists():
            for line in self._partial.read_text().splitlines():
                row = json.loads(line)
                if row["cell"] == name and row["code"] == _code_version():
                    return dict(row["numbers"])
        return None

    def finish(self) -> None:
        """Prints what was missed and the closing line, and keeps a full run's figures in results/."""
        # A run of some cells has some figures.
        targets = {name: target for name, target in self.targets.items() if not self.only or name in self.figures}
        missed = [name for name, target in targets.items() if target.is_missed(self.figures[name])]
        closing: dict[str, Any] = {
            "benchmark": self.name,
            "figures": {name: round(value, 4) for name, value in self.figures.items()},
            "targets": {name: target.bound for name, target in targets.items()},
            "missed": missed,
        }
        if self.notes:
            closing["notes"] = self.notes
        if not self.quick and not self.only:
            machine = {"processor": _processor(), "cores": os.cpu_count(), "load": os.getloadavg()}
            (RESULTS / f"{self.name}.json").write_text(json.dumps({**closing, "machine": machine}, indent=2) + "\n")
        if not self.only:
            self._partial.unlink(missing_ok=True)
        console.print(f"[bold]{'missed: ' + ', '.join(missed) if missed else 'all targets met'}[/bold]")
        print(json.dumps(closing))


def tree_of(commit: str) -> Path:
    """Returns the files of a commit: a git worktree in results/trees, made now or by an earlier run.

    It stays, with the bytecode and the kernels that are compiled in it; git ignores it.
    `git worktree remove --force` takes it away.
    """
    folder = RESULTS / "trees" / commit
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        (folder.parent / ".gitignore").write_text("*\n")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "prune"], check=True)
        done = subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"The commit {commit} is measured beside this tree, and git could not check it out: it has to be in "
                f"the history of this clone (git fetch --unshallow).\n{done.stderr}"
            )
    return folder


def difference(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of paired differences and its standard error."""
    pairs = [value - other for value, other in zip(values, others, strict=True)]
    return statistics.mean(pairs), statistics.stdev(pairs) / len(pairs) ** 0.5


# What `import laconic` sets for torch, unless set already: torch reads some of it when it loads, some later.
OURS = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1"}
# What a script without laconic runs with.
PLAIN = {"THP_MEM_ALLOC_ENABLE": "0"}


def _run_with_our_environment() -> None:
    """Starts the script anew with the settings of `import laconic`, as if it had been imported first.

    Contenders that share the process all run under them.
    """
    if os.environ.get("LACONIC_BENCHMARK") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **OURS, "LACONIC_BENCHMARK": "1"})


class Worker:
    """A contender in a process of its own, with its own environment; each call makes it take one step and say a number.

    The process runs `serve` of this module. Use as a context manager: the process ends with it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in (*OURS, *PLAIN)}
        self._process = subprocess.Popen(
            command, env={**inherited, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: list[float] = []

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def __call__(self) -> None:
        try:
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
            self.said.append(float(self._process.stdout.readline()))
        except (ValueError, BrokenPipeError):
            raise RuntimeError(f"{' '.join(self._process.args)} ended with {self._process.wait()}") from None


def serve(step: Callable[[], float]) -> None:
    """Takes a step for each line that comes in and prints what it returns, until the input ends."""
    for _ in sys.stdin:
        print(step(), flush=True)


def status_bytes(field: str) -> int:
    """Returns what the system says of this process's memory: VmRSS is now, VmHWM its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


@cache
def _code_version() -> str:
    """A fingerprint of the library and the benchmarks: cells of other code are not taken over."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def interleaved(
    contenders: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1, turn_seconds: float = 0.0
) -> dict[str, float]:
    """Returns the seconds that a step of each contender takes: the median over turns of the fastest step in a turn.

    They take turns, so that a noisy moment falls on all of them, in an order that changes.

    Args:
        repeats, warm_up: turns that count, and before them turns of one step that do not.
        turn_seconds: 0 makes a turn one step. Otherwise it has two steps at least and goes on for so long, unless its
            first step took twice that: a process that was idle while others ran pays for it in its first step (memory
            that the system took away, cold caches), which no training run would.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(warm_up + repeats):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            steps = _take_turn(contenders[name], turn_seconds if turn >= warm_up else 0.0)
            seconds[name].append(min(steps))
    return {name: statistics.median(values[warm_up:]) for name, values in seconds.items()}


def _take_turn(run: Callable[[], object], turn_seconds: float) -> list[float]:
    steps = [_time(run)]
    while steps[0] < 2 * turn_seconds and (len(steps) < 2 or sum(steps) < turn_seconds):
        steps.append(_time(run))
    return steps


def _time(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def make_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


console = Console(width=110)
# Beside the tables, so that a run's output is what it was and a person sees that it goes on.
_progress = Console(stderr=True, highlight=False, soft_wrap=True)
