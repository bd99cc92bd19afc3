"""Chunks on their way between ranks that are real processes: a rank that raises or is killed meanwhile ends all."""

import os
import signal

import torch
from tests.equivalence.halo_runs import IN, OUT, make_graph
from tests.equivalence.isolated_runs import train
from tests.processes.rank_processes import Environment, run_processes
from torch_geometric.nn import GCN

from laconic.comm import Communicator, Ledger, connect
from laconic.papers.grappa.supply import PeerSupply

# Each loads torch and PyG, which takes a while where others work too.
SECONDS = 240
STRATEGY = "grappa(variable=1, repartition_every=1, supply=peers, partitioner=random)"


def train_on(transport, epochs=6):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GCN(IN, 8, 2, OUT).double()
    communicator = Communicator(transport, Ledger(transport.rank))
    return train(STRATEGY, make_graph(), model, communicator, epochs).losses


def train_through(environment: Environment) -> list[float]:
    with connect(environment, timeout=30.0) as transport:
        return train_on(transport)


def with_trouble(transport, trouble):
    """Has `trouble()` called on rank 1 when the third hand-over has begun and before its chunks are waited for."""
    begin, calls = PeerSupply.start, []

    def start(self, wanted):
        arrival = begin(self, wanted)
        calls.append(wanted)
        if transport.rank == 1 and len(calls) == 3:
            trouble()
        return arrival

    PeerSupply.start = start
    return train_on(transport)


def fail() -> None:
    raise OSError("the disk is full")


def raise_in_a_hand_over(environment: Environment) -> None:
    with connect(environment, timeout=30.0) as transport:
        with_trouble(transport, fail)


def kill_in_a_hand_over(environment: Environment) -> None:
    with connect(environment, timeout=2.4) as transport:
        with_trouble(transport, lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_processes_hand_chunks_over_while_they_train():
    outcomes = run_processes(3, train_through, seconds=SECONDS)
    assert outcomes[0].value is not None, outcomes[0].error
    assert outcomes[0].value == outcomes[1].value == outcomes[2].value


def test_a_rank_that_raises_in_a_hand_over_is_named_with_its_message():
    outcomes = run_processes(3, raise_in_a_hand_over, seconds=SECONDS)
    assert outcomes[1].error == "OSError: the disk is full"
    for rank in (0, 2):
        assert outcomes[rank].error == "RankFailedError: Rank 1 failed: OSError: the disk is full"


def test_a_rank_that_is_killed_in_a_hand_over_is_named():
    outcomes = run_processes(3, kill_in_a_hand_over, seconds=SECONDS)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].rank == 1, outcomes[rank].error
        assert outcomes[rank].exit_code == 0
