"""A process that leaves at once does all that was promised for its end."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from laconic.processes import leave

class Never:
    def __del__(self): print("taken down")
never = Never()
atexit.register(print, "atexit")
executor = ThreadPoolExecutor()
executor.submit(time.sleep, 0)
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.stdout.write("unflushed ")
leave({code})
"""


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("None", 0), ("3", 3), ("'why'", 1), ("256 + 7", 7)])
def test_threads_are_waited_for_then_atexit_then_output_and_nothing_is_taken_down(code, expected):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{code}", code)], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == expected
    assert done.stdout == "unflushed thread\natexit\n"
    assert done.stderr == ("why\n" if code == "'why'" else "")


def test_output_that_nobody_reads_is_told_by_the_exit_code(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code = "import sys; from laconic.processes import leave; sys.stdin.read(); print('x'); leave(0)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.close()
    process.stdin.close()
    assert process.wait(20) == 120
