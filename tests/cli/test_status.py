"""What a verb says while it works: a spinner on a terminal, plain lines elsewhere, nothing of it on stdout."""

import io
import logging
import subprocess
import sys
import time

import pytest
from rich.console import Console

from laconic.cli import status as status_module
from laconic.cli.console import error_console, show_log_lines
from laconic.cli.status import Status, working


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr(status_module, "_LONG_SECONDS", 0.01)


def wait_for(out, text):
    deadline = time.monotonic() + 30
    while text not in out.getvalue():
        assert time.monotonic() < deadline, out.getvalue()
        time.sleep(0.005)


def test_elsewhere_than_on_a_terminal_the_first_text_comes_at_once_and_short_phases_say_nothing(out):
    status = Status(Console(file=out, width=80))
    status.tell("Loading PyTorch")
    assert out.getvalue() == "Loading PyTorch\n"
    for text in ("Loading [cora].npz", "Dividing", "Writing"):
        status.tell(text)
    status.stop()
    assert out.getvalue() == "Loading PyTorch\n"


def test_a_long_phase_says_what_it_does(out, quickly):
    status = Status(Console(file=out, width=80))
    status.tell("Loading PyTorch")
    status.tell("Loading [cora].npz")
    wait_for(out, "Loading [cora].npz\n")
    status.stop()


def test_on_a_terminal_there_is_one_line_that_changes_and_is_taken_away(out):
    status = Status(Console(file=out, width=80, force_terminal=True, _environ={"TERM": "xterm"}))
    status.tell("Loading PyTorch")
    status.tell("Loading [cora].npz")
    status.stop()
    text = out.getvalue()
    assert "Loading PyTorch" in text
    assert text.endswith("\x1b[2K"), "the line is erased"
    assert "\x1b[?25h" in text, "the cursor is shown again"


def test_notes_go_to_the_console_that_shows_the_status(capsys):
    with working("Loading PyTorch"):
        inside = error_console()
        assert error_console() is inside
        show_log_lines(debug=False)
        logging.getLogger("laconic.test").info("a note")
    assert error_console() is not inside
    assert capsys.readouterr().err == "Loading PyTorch\nNote: a note\n"


@pytest.mark.parametrize(
    "arguments",
    [["train"], ["predict", "run"], ["partition", "sbm", "--parts", "2", "out"], ["info", "sbm"], ["datasets"]],
)
def test_every_verb_says_something_before_it_loads_what_is_heavy(arguments, tmp_path):
    # The finder ends the process when torch is asked for.
    code = (
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('torch', 'numpy', 'torch_geometric', 'numba'): raise SystemExit(7)\n"
        "sys.meta_path.insert(0, Stop())\n"
        "from laconic.cli.main import app\n"
        f"app({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    assert done.stderr == f"{status_module.LOADING}\n"
    assert done.stdout == ""
