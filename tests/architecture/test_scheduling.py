"""Tests that start processes follow each other on one worker, however many workers there are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests import conftest, scheduling

ROOT = Path(__file__).parents[2]
TEN_TESTS = """
import pytest

@pytest.mark.parametrize("number", range(10))
def test_nothing(number):
    pass
"""


def test_tests_of_labs_and_of_processes_run_on_one_worker_and_so_does_a_contract(tmp_path):
    for folder in ("lab", "processes", "contracts", "unit"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(TEN_TESTS)
    options = ["-n", "2", "-vv", "-c", "/dev/null", "--rootdir", ".", "-p", "tests.scheduling"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name} | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = re.findall(r"\[(gw\d)\].* PASSED tests/(\w+)/", done.stdout)
    assert len(ran) == 40
    assert len({worker for worker, folder in ran if folder in ("lab", "processes")}) == 1
    assert len({worker for worker, folder in ran if folder == "contracts"}) == 1
    assert len({worker for worker, _ in ran}) == 2


def test_our_own_tests_are_handed_out_so():
    assert conftest.pytest_xdist_make_scheduler is scheduling.pytest_xdist_make_scheduler


@pytest.mark.parametrize("folder", scheduling.ONE_AFTER_ANOTHER + scheduling.FILE_BY_FILE)
def test_every_folder_of_a_group_has_tests(folder):
    assert list((ROOT / folder).glob("test_*.py"))
