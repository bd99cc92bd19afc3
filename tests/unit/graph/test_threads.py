"""Torch's number of threads is the kernels', and stays what it was set to."""

import subprocess
import sys

import pytest

SCRIPT = """
import torch
from laconic.graph.threads import use_torch_threads
torch.set_num_threads(1)
print(use_torch_threads(1 << 20), torch.get_num_threads())
torch.set_num_threads(2)
print(use_torch_threads(1 << 20), use_torch_threads(10), torch.get_num_threads())
"""


RANKS = """
import sys
import threading

import numba
import torch

from laconic.datasets import load
from laconic.graph.normalize import gcn_operator
from laconic.graph.operators.maximum import maximum

NUM_RANKS = 4
torch.set_num_threads(2)
graph = load("sbm(nodes=500, degree=20, features=16)")
operator, together = gcn_operator(graph.adjacency), threading.Barrier(NUM_RANKS)
results, in_force = {}, set()


def rank(number, num_threads):
    # A thread's first question takes over the number that any thread set last, even after one of its own was set.
    torch.get_num_threads()
    torch.set_num_threads(num_threads)
    together.wait()
    for _ in range(20):
        x = graph.x.clone().requires_grad_()
        (operator @ x + maximum(graph.adjacency, x)).square().sum().backward()
        results.setdefault(number, []).append(x.grad)
        in_force.add((num_threads, torch.get_num_threads(), numba.get_num_threads()))


def run(wanted):
    ranks = [threading.Thread(target=rank, args=pair) for pair in enumerate(wanted)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()


# The ranks call the first kernel of the process, so that its threads start under one of them.
run([int(digit) for digit in sys.argv[1]])
rank_grads = [grad for grads in results.values() for grad in grads]
together = threading.Barrier(1)
rank(NUM_RANKS, 2)
print(sorted(in_force), all(torch.equal(grad, results[NUM_RANKS][0]) for grad in rank_grads))
"""


@pytest.mark.parametrize("layer", ["default", "workqueue"])
@pytest.mark.parametrize("wanted", ["1111", "1212"])
def test_each_thread_of_a_process_has_the_number_that_it_has_set(
    layer: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_THREADING_LAYER", layer)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    done = subprocess.run([sys.executable, "-c", RANKS, wanted], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Wanted, torch's and the kernels'; the last to run, alone, wants 2.
    assert done.stdout.strip() == "[(1, 1, 1), (2, 2, 2)] True"


def test_the_first_kernel_of_a_process_keeps_torchs_number_of_threads():
    # A process of its own: numba's threads start once.
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 1", "2 1 2"]
