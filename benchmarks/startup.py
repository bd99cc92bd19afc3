"""How long `laconic train` takes on a tiny graph, where nearly all of it is starting: imports, ranks, and the end.

    python benchmarks/startup.py
    python benchmarks/startup.py --quick

Contenders take turns: this tree, and the commit before anything was done about it (BEFORE), checked out in a git
worktree beside the results. Both have their bytecode and their compiled kernels on disk, as an installed package has
after its first run; making these takes a minute or two before the first cell. Run it alone on the machine.

The imports of a run are all modules that it has in the end, imported one after the other in a process that does nothing
else, over the time that `import torch, torch_geometric` takes in another.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from harness import OURS, ROOT, Benchmark, Target, console, make_table, tree_of

BEFORE = "6d7e8c5"
TRAIN = ["train", "sbm", "--epochs", "10"]
RANKS = (1, 2, 4)
TARGETS = {
    False: {
        "imports over torch and PyG": Target(1.25, at_most=True),
        "1 rank over before": Target(0.7, at_most=True),
        "4 ranks over 1 rank": Target(2.5, at_most=True),
        "seconds to the first character": Target(1.0, at_most=True),
    },
    # One turn each: a noisy moment may fall on one contender alone.
    True: {
        "imports over torch and PyG": Target(1.35, at_most=True),
        "1 rank over before": Target(0.8, at_most=True),
        "4 ranks over 1 rank": Target(3.0, at_most=True),
        "seconds to the first character": Target(1.5, at_most=True),
    },
}

# Writes the names of all modules that a run has loaded, in the order in which their imports began.
LIST_MODULES = """
import atexit, json, sys
names = sys.argv.pop()
atexit.register(lambda: json.dump(list(sys.modules), open(names, "w")))
from laconic.cli.main import main
main()
"""
# Prints the seconds that it takes to import the modules that a file names. Some were made by others, and have no file.
IMPORT_MODULES = """
import importlib, json, sys, time
names = json.load(open(sys.argv[1]))
begin = time.perf_counter()
for name in names:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
print(time.perf_counter() - begin)
"""
TORCH_AND_PYG = ["torch", "torch_geometric"]


class Tree:
    """A version of Laconic, and the commands that are run with it; runs go into `folder`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        folder.mkdir()
        # What a shell of a user's has: harness and CI set more.
        dropped = {*OURS, "LACONIC_BENCHMARK", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"}
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        self._environment = {**inherited, "PYTHONPATH": str(root / "src"), "COLUMNS": "100"}

    def seconds(self, *arguments: str) -> float:
        """Returns how long a process of Python takes, from its start to its end."""
        begin = time.perf_counter()
        self._run(*arguments)
        return time.perf_counter() - begin

    def train(self, num_ranks: int) -> float:
        """Returns how long training on so many ranks takes."""
        return self.seconds("-m", "laconic", *TRAIN, *(["--ranks", str(num_ranks)] if num_ranks > 1 else []))

    def seconds_to_first_character(self, num_ranks: int) -> float:
        """Returns how long the screen stays empty."""
        command = [sys.executable, "-m", "laconic", *TRAIN, "--ranks", str(num_ranks)]
        begin = time.perf_counter()
        with subprocess.Popen(
            command, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            assert process.stdout.read(1), "it said nothing"
            seconds = time.perf_counter() - begin
            process.stdout.read()
        return seconds

    def modules_of_a_run(self) -> list[str]:
        """Returns the names of all modules that training on one rank imports."""
        names = self._folder / "modules.json"
        self._run("-c", LIST_MODULES, *TRAIN, str(names))
        loaded = json.loads(names.read_text())
        return [name for name in loaded if name != "__main__"]

    def import_seconds(self, modules: list[str]) -> float:
        """Returns how long importing takes in a process that does nothing else."""
        names = self._folder / "imports.json"
        names.write_text(json.dumps(modules))
        return float(self._run("-c", IMPORT_MODULES, str(names)))

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self._folder, env=self._environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{self._root}: {' '.join(arguments[-6:])} failed:\n{done.stderr}")
        return done.stdout


@contextmanager
def trees() -> Iterator[dict[str, Tree]]:
    """Gives this tree and the one before; the folders of their runs are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="laconic-startup-") as folder:
        roots = {"before": tree_of(BEFORE), "after": ROOT}
        yield {name: Tree(root, Path(folder) / name) for name, root in roots.items()}


def take_turns(contenders: Mapping[str, Callable[[], float]], turns: int) -> dict[str, float]:
    """Returns the median of what each contender returns; they take turns, in an order that changes."""
    said: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(turns):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            said[name].append(contenders[name]())
    return {name: statistics.median(values) for name, values in said.items()}


def measure_imports(both: Mapping[str, Tree], turns: int) -> dict[str, float]:
    contenders = {"torch and PyG": partial(both["after"].import_seconds, TORCH_AND_PYG)}
    for name, tree in both.items():
        contenders[name] = partial(tree.import_seconds, tree.modules_of_a_run())
    return take_turns(contenders, turns)


def measure_runs(both: Mapping[str, Tree], turns: int, quick: bool) -> dict[str, float]:
    contenders = {
        f"{name}, {num_ranks}": partial(tree.train, num_ranks)
        for num_ranks in RANKS
        for name, tree in both.items()
        if name == "after" or num_ranks == 1 or not quick
    }
    # Bytecode, kernels, and the system's cache of files.
    for contender in contenders.values():
        contender()
    return take_turns(contenders, turns)


def measure_first_character(both: Mapping[str, Tree], turns: int) -> dict[str, float]:
    return take_turns({name: partial(tree.seconds_to_first_character, 1) for name, tree in both.items()}, turns)


def main() -> None:
    benchmark = Benchmark.from_command_line("startup", __doc__.splitlines()[0], TARGETS)
    turns = 1 if benchmark.quick else 7
    with trees() as both:
        runs = benchmark.cell("runs", lambda: measure_runs(both, turns, benchmark.quick))
        imports = benchmark.cell("imports", lambda: measure_imports(both, turns))
        first = benchmark.cell("first character", lambda: measure_first_character(both, turns))
    table = make_table("seconds, median", "", "before", "after", "after / before")
    rows = {
        "imports of a run": {name: imports[name] for name in ("before", "after")},
        **{f"train, ranks {n}": {name: runs.get(f"{name}, {n}") for name in ("before", "after")} for n in RANKS},
        "first character": first,
    }
    for name, row in rows.items():
        known = [f"{row[tree]:.2f}" if row[tree] is not None else "" for tree in ("before", "after")]
        table.add_row(name, *known, f"{row['after'] / row['before']:.2f}" if all(known) else "")
    table.add_row("import torch, torch_geometric", "", f"{imports['torch and PyG']:.2f}", "")
    console.print(table)
    figures = {
        "imports over torch and PyG": imports["after"] / imports["torch and PyG"],
        "imports over torch and PyG, before": imports["before"] / imports["torch and PyG"],
        "1 rank over before": runs["after, 1"] / runs["before, 1"],
        "2 ranks over 1 rank": runs["after, 2"] / runs["after, 1"],
        "4 ranks over 1 rank": runs["after, 4"] / runs["after, 1"],
        "seconds to the first character": first["after"],
        "seconds to the first character, before": first["before"],
        "seconds on 1 rank": runs["after, 1"],
        "seconds on 4 ranks": runs["after, 4"],
    }
    if "before, 4" in runs:
        figures["4 ranks over 1 rank, before"] = runs["before, 4"] / runs["before, 1"]
        figures["4 ranks over before"] = runs["after, 4"] / runs["before, 4"]
    benchmark.figures.update(figures)
    benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
