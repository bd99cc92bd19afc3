"""A run imports what it uses, and nothing else that takes long to import."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import atexit, os, sys
atexit.register(lambda: print("rank", os.environ.get("RANK", "alone"), *sys.modules))
from laconic.cli.main import main
main()
"""
# Heavy, and for few: other metrics, plots, tables, dividing graphs, curves.
FEW_NEED = ["torchmetrics", "scipy.signal", "scipy.stats", "matplotlib", "pandas", "sklearn", "pyarrow", "tensorboard"]
OTHER_STRATEGIES = [
    "laconic.cached",
    "laconic.papers",
    "laconic.sharded.aggregator",
    "laconic.sharded.trial",
    "laconic.lab",
]


def modules_of(tmp_path: Path, *arguments: str) -> dict[str, set[str]]:
    """Trains, and returns the modules of each process that tells on stdout: one alone, or the launcher and rank 0."""
    command = [sys.executable, "-c", RUN, "train", "sbm(nodes=60)", "--epochs", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("rank ")]
    return {who: set(modules) for who, *modules in rows}


def test_a_run_on_one_rank_imports_no_more_than_it_uses(tmp_path: Path) -> None:
    (loaded,) = modules_of(tmp_path).values()
    assert {"torch", "torch_geometric", "laconic.strategies.single"} <= loaded
    assert not loaded & {*FEW_NEED, *OTHER_STRATEGIES, "pymetis"}


def test_a_run_on_two_ranks_imports_its_strategy_alone(tmp_path: Path) -> None:
    loaded = modules_of(tmp_path, "--ranks", "2")
    assert set(loaded) == {"alone", "0"}
    for modules in loaded.values():
        assert "laconic.strategies.exchange" in modules
        assert not modules & {
            *FEW_NEED,
            "laconic.cached",
            "laconic.papers",
            "laconic.strategies.gradient_only",
            "laconic.lab",
        }


@pytest.mark.parametrize(
    "module",
    ["laconic", "laconic.cli.main", "laconic.launching.local", "laconic.launching.template", "laconic.strategies"],
)
def test_what_starts_ranks_needs_neither_torch_nor_numpy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'numpy', 'numba', 'torch_geometric'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
