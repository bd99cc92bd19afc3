"""A file that needs more than 400 lines is two files."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "manager"}


def python_files():
    return [path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]


def test_no_file_is_longer_than_400_lines():
    long = {
        str(path.relative_to(ROOT)): count
        for path in python_files()
        if (count := len(path.read_text().split("\n"))) > 400
    }
    assert not long


def test_no_file_has_a_name_that_says_nothing():
    assert not [path for path in python_files() if path.stem.strip("_") in FORBIDDEN_NAMES]
