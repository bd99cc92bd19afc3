import importlib
import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from typer.testing import CliRunner

import laconic.kernels
from laconic.cli import findings
from laconic.cli.findings import find_data, find_kernels, find_machine, find_packages
from laconic.cli.main import app

runner = CliRunner()


def test_on_a_sound_machine_nothing_is_missing_and_the_code_is_0() -> None:
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == 0, shown.stdout
    for word in ("torch", "numba", "cores", "memory", "GPU", "threading layer", "compiled", "LACONIC_DATA"):
        assert word in shown.stdout
    assert "missing" not in shown.stdout
    assert "All that Laconic needs is here." in shown.stdout


def test_every_dependency_of_the_package_is_looked_at() -> None:
    named = {finding.name.replace("_", "-") for finding in find_packages()}
    assert {"python", "torch", "torch-geometric", "numpy", "numba", "pyarrow", "pymetis", "typer", "rich"} <= named
    assert not {"pytest", "ruff", "mypy"} & named


@pytest.mark.parametrize("found", [None, "2.9.1+cpu"])
def test_a_package_that_is_absent_or_too_old_ends_with_code_1_and_how_to_get_it(
    found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name != "torch":
            return real(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == 1
    assert "missing torch: pip install" in shown.stdout
    assert '"torch>=2.10"' in shown.stdout
    assert "All that Laconic needs" not in shown.stdout


def test_versions_compare_as_numbers_not_as_text() -> None:
    assert findings._numbers("2.10.0+cpu") > findings._numbers("2.9.1") > findings._numbers("2.9")


def without(*modules: str) -> Any:
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name.endswith(modules):
            raise ImportError(f"libgomp.so.1: cannot open shared object file ({name})")
        return real(name, package)

    return import_module


def test_workqueue_alone_is_noted_with_how_to_get_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", without("omppool", "tbbpool"))
    layer = find_machine()[-1]
    assert (layer.value, layer.status) == ("workqueue", "note")
    assert "libgomp1" in layer.advice


def test_the_layer_that_the_environment_asks_for_is_the_one_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "THREADING_LAYER", "workqueue")
    layer = find_machine()[-1]
    assert layer.value == "workqueue"
    assert "NUMBA_THREADING_LAYER" in layer.advice


def test_no_threading_layer_at_all_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", without("omppool", "tbbpool", "workqueue"))
    assert find_machine()[-1].status == "missing"


@pytest.mark.parametrize(("torch_threads", "numba_threads", "used"), [(1, 2, "1"), (2, 1, "1"), (2, 2, "2")])
def test_kernels_use_torchs_threads_as_far_as_numba_has_them(
    monkeypatch: pytest.MonkeyPatch, torch_threads: int, numba_threads: int, used: str
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: torch_threads)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", numba_threads)
    assert next(finding.value for finding in find_machine() if finding.name == "kernel threads") == used


def test_more_threads_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    too_many = 1 + len(os.sched_getaffinity(0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: too_many)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", too_many)
    threads = next(finding for finding in find_machine() if finding.name == "kernel threads")
    assert threads.status == "note"
    assert "OMP_NUM_THREADS" in threads.advice


def test_a_package_that_cannot_be_loaded_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[findings.Finding]:
        raise ImportError("libtorch.so: undefined symbol")

    monkeypatch.setitem(importlib.import_module("laconic.cli.doctor")._SECTIONS, "Machine", broken)
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == 1
    assert "undefined symbol" in shown.stdout
    assert "Traceback" not in shown.output


def test_a_kernel_counts_as_compiled_once_it_is_on_disk_and_not_after_its_source_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_kernel.py").write_text(
        "import numba\n\n@numba.njit(cache=True)\ndef double(value):\n    return 2 * value\n"
    )
    (tmp_path / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    package = importlib.import_module(tmp_path.name)
    module = importlib.import_module(f"{tmp_path.name}.one_kernel")
    assert findings.count_compiled(package) == (0, 1, {str(tmp_path / "__pycache__")})
    assert module.double(2) == 4
    assert findings.count_compiled(package)[:2] == (1, 1)
    later = (tmp_path / "one_kernel.py").stat().st_mtime + 100
    os.utime(tmp_path / "one_kernel.py", (later, later))
    assert findings.count_compiled(package)[:2] == (0, 1)


def test_warm_up_compiles_before_it_looks_and_shows_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def warm_up(report: Callable[[str], None] | None = None) -> None:
        assert report is not None
        report("product [float32]")

    monkeypatch.setattr("laconic.trainer.warm_up.warm_up_all", warm_up)
    shown = runner.invoke(app, ["doctor", "--warm-up"]).stdout
    assert shown.index("product [float32]") < shown.index("Packages")


def test_our_own_kernels_are_found_serial_and_parallel_ones() -> None:
    found = {kernel.py_func.__name__ for kernel in findings._cached_kernels(laconic.kernels)}
    assert {"fill_lightest", "sparse_product"} <= found
    assert find_kernels()[0].value.endswith(f" of {len(found)}")


def test_folders_of_the_search_path_that_do_not_exist_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LACONIC_DATA", f"{tmp_path}:{tmp_path / 'absent'}")
    assert [finding.status for finding in find_data()] == ["ok", "note"]


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_stay_within_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = runner.invoke(app, ["doctor"])
    assert max(map(len, shown.stdout.splitlines())) <= columns
