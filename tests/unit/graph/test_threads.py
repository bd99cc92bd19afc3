"""Torch's number of threads is the kernels', and stays what it was set to."""

import subprocess
import sys

SCRIPT = """
import torch
from laconic.graph.threads import use_torch_threads
torch.set_num_threads(1)
print(use_torch_threads(1 << 20), torch.get_num_threads())
torch.set_num_threads(2)
print(use_torch_threads(1 << 20), use_torch_threads(10), torch.get_num_threads())
"""


def test_the_first_kernel_of_a_process_keeps_torchs_number_of_threads():
    # A process of its own: numba's threads start once.
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 1", "2 1 2"]
