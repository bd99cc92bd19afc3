"""Ranks that begin as copies of the process that starts them are what processes of their own would be."""

import json
import subprocess
import sys

import pytest

# What each rank finds is left in a file; the launcher has open files, handlers, and a function for its own end.
LAUNCHER = """
import atexit, json, os, random, signal, sys
from pathlib import Path
from laconic.launching.local import run_local_ranks

folder = Path(sys.argv[1])
atexit.register(lambda: (folder / f"ended-{os.getpid()}").touch())
signal.signal(signal.SIGUSR1, lambda number, frame: None)
held = open(folder / "held", "w")

def rank():
    number = os.environ["RANK"]
    files = {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")[:-1]}
    found = {
        "variables": dict(os.environ),
        "pid": os.getpid(),
        "starter": os.getppid(),
        "session": os.getsid(0),
        "input": sys.stdin.read(),
        "holds": str(folder / "held") in files,
        "sockets": [name for name in files if name.startswith("socket:")],
        "handlers": [signal.getsignal(each) is wanted for each, wanted in (
            (signal.SIGUSR1, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGINT, signal.default_int_handler))],
        "random": random.random(),
    }
    (folder / number).write_text(json.dumps(found))
    print("rank", number, "says")
    sys.stderr.write(f"rank {number} complains\\n")
    if number == "2":
        raise ValueError("something of rank 2")
    sys.exit(0 if number == "0" else "rank 1 gives up")

code = run_local_ranks(["false"], 3, loaded=rank, environment={"COLOUR": "blue"}, grace_seconds=20.0)
print("launcher", os.getpid(), code, "RANK" in os.environ)
"""


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Three copies, of which two fail: what each has found, what was written, and where."""
    folder = tmp_path_factory.mktemp("copies")
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, str(folder)],
        input="not for ranks",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(3)], done, folder


def test_each_copy_has_variables_a_session_and_random_numbers_of_its_own(launched):
    found, done, _ = launched
    launcher = int(done.stdout.splitlines()[-1].split()[1])
    for rank, one in enumerate(found):
        assert (one["variables"]["RANK"], one["variables"]["COLOUR"]) == (str(rank), "blue")
        assert (one["session"], one["starter"]) == (one["pid"], launcher)
    assert len({one["random"] for one in found}) == 3
    assert done.stdout.splitlines()[-1].endswith(" False"), "the launcher's variables are its own"


def test_no_copy_has_the_files_the_handlers_or_the_input_of_its_launcher(launched):
    for one in launched[0]:
        assert not one["holds"]
        assert not one["sockets"], "the door at which ranks knock is not theirs"
        assert all(one["handlers"])
        assert one["input"] == ""


def test_what_copies_write_and_how_they_end_is_told_as_of_commands(launched):
    found, done, folder = launched
    assert done.stdout.splitlines()[0] == "rank 0 says"
    assert done.stdout.splitlines()[1].split()[2] == "1", "the code of the first that failed"
    lines = done.stderr.splitlines()
    assert "rank 0 complains" in lines
    assert {"rank 1 | rank 1 says", "rank 1 | rank 1 complains", "rank 1 | rank 1 gives up"} <= set(lines)
    assert "rank 2 | ValueError: something of rank 2" in lines
    assert all((folder / f"ended-{one['pid']}").exists() for one in found), "functions of atexit are called"


SAFE = """
import sys, threading
from laconic.processes import is_safe_to_fork
print(is_safe_to_fork())
"""
USES_KERNEL = """
from laconic.kernels.compile import load_compiler
load_compiler()
print(is_safe_to_fork())
from laconic.kernels.compile import threading_layer
threading_layer()
print(is_safe_to_fork())
"""
WAITS = """
done = threading.Event()
threading.Thread(target=done.wait).start()
print(is_safe_to_fork())
done.set()
"""


@pytest.mark.parametrize(
    ("code", "safe"), [(SAFE + WAITS, "True False"), (SAFE + USES_KERNEL, "True True False")], ids=["thread", "kernels"]
)
def test_a_process_with_threads_or_with_kernels_that_ran_is_not_copied(code, safe, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == safe.split(), done.stderr


def test_loading_for_ranks_starts_no_thread_however_many_threads_ranks_have():
    code = (
        "import os; os.environ['OMP_NUM_THREADS'] = '8'\n"
        "from laconic.launching.template import can_be_template, loading_for_ranks\n"
        "assert can_be_template()\n"
        "with loading_for_ranks(2): import laconic.trainer.early_checks\n"
        "assert not can_be_template()\n"
        "assert 'OPENBLAS_NUM_THREADS' not in os.environ\n" + SAFE
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr
