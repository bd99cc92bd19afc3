"""Parallel kernels may be called from several Python threads at once, whichever layer runs numba's threads."""

import os
import subprocess
import sys

import pytest

# All start together, so that the first call of the process is contended too.
SCRIPT = """
import sys
import threading

import numpy as np

from laconic.kernels.compile import threading_layer, use_threads
from laconic.kernels.gat import gat_pack

NUM_CALLERS, NUM_CALLS = 4, 500
together = threading.Barrier(NUM_CALLERS)
num_right = [0] * NUM_CALLERS


def call(caller):
    num_threads = 1 if sys.argv[1] == "one" else 1 + caller % 2
    rows = np.random.default_rng(caller).standard_normal((100 + caller, 4))
    expected = np.concatenate([rows, rows, rows, rows * rows], axis=1)
    together.wait()
    for _ in range(NUM_CALLS):
        packed = np.zeros((len(rows), 16))
        assert use_threads(num_threads) == num_threads
        gat_pack(rows, rows, rows, rows, rows, packed)
        num_right[caller] += np.array_equal(packed, expected)


callers = [threading.Thread(target=call, args=(caller,)) for caller in range(NUM_CALLERS)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
print(threading_layer(), num_right == [NUM_CALLS] * NUM_CALLERS)
"""


@pytest.mark.parametrize("num_threads", ["one", "one or two"])
@pytest.mark.parametrize("layer", ["workqueue", "default"])
def test_several_threads_call_kernels_at_once_and_get_right_results(layer: str, num_threads: str) -> None:
    # A process of its own: numba chooses its layer once, and a clash in workqueue ends the process.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, num_threads],
        env={**os.environ, "NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    used, is_right = done.stdout.split()
    assert is_right == "True"
    assert layer in ("default", used)
