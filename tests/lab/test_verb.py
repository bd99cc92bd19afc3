import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from laconic.cli.main import app


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the real command, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "laconic", "lab", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


def test_lines_are_prefixed_streams_kept_apart_and_a_table_follows() -> None:
    done = run("--hosts", "2", "--link", "100mbit", "--", "sh", "-c", "echo out $COLUMNS; echo err >&2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # The prefix takes 9 of the 80 columns.
    assert sorted(lines[:2]) == ["host 0 | out 71", "host 1 | out 71"]
    assert re.match(r"Host +Address +Exit code +Time +Received +Packets +Sent +Packets", lines[2])
    assert [line.split()[0] for line in lines[3:]] == ["0", "1"]
    assert max(map(len, lines)) <= 80
    assert sorted(line for line in done.stderr.splitlines() if line.startswith("host")) == [
        "host 0 | err",
        "host 1 | err",
    ]
    assert re.search(r"2 hosts \(10\.77\.\d+\.1 to 10\.77\.\d+\.2\), links of 100mbit each way", done.stderr)


def test_the_code_is_that_of_the_first_host_that_failed_and_it_is_named() -> None:
    done = run("--hosts", "3", "--grace", "200ms", "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 100")
    assert done.returncode == 7
    assert "Error: Host 1 failed first, with exit code 7" in done.stderr
    assert "143 (ended)" in done.stdout


def test_the_loss_of_a_link_is_told() -> None:
    done = run("--hosts", "2", "--loss-of", "1@100ms", "--", "sleep", "0.5")
    assert done.returncode == 0, done.stderr
    assert "Note: Host 1 lost its link after 100 ms." in done.stderr


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_help_has_an_example_that_fits_the_terminal(columns: str) -> None:
    shown = CliRunner().invoke(app, ["lab", "--help"], env={"COLUMNS": columns, "TERMINAL_WIDTH": columns})
    assert shown.exit_code == 0
    assert "laconic lab --hosts 4 --link 1gbit -- " in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= int(columns)
