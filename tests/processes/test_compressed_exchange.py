"""Compressed exchange between real processes: late messages, and one that was altered on the way."""

import torch
from tests.equivalence.altering import Altering, flip
from tests.equivalence.coded_runs import sage, step
from tests.equivalence.halo_runs import make_graph
from tests.placing import start
from tests.processes.rank_processes import Environment, run_processes

from laconic.comm import connect, run_ranks
from laconic.comm.transport import Transport


def train(transport: Transport, text: str, epochs: int, model: torch.nn.Module) -> list[float]:
    torch.set_num_threads(1)
    worker = start(
        f"exchange({text}, partitioner=random, edges=destination, reach=0)", make_graph(90), model, transport, seed=5
    )
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for epoch in range(1, epochs + 1):
        losses.append(float(step(worker, epoch)))
        optimizer.step()
    return losses


LATE = "codec=stale(codec=error_feedback)"


def train_late(environment: Environment) -> list[float]:
    with connect(environment, timeout=60) as transport:
        # The last messages are never waited for.
        return train(transport, LATE, 5, sage())


def test_late_messages_between_processes_give_what_threads_give():
    models = [sage() for _ in range(2)]
    expected = run_ranks(2, lambda transport: train(transport, LATE, 5, models[transport.rank]))
    for outcome in run_processes(2, train_late, seconds=120):
        assert not outcome.error
        assert outcome.value == expected[0]


def train_altered(environment: Environment) -> list[float]:
    with connect(environment, timeout=60) as transport:
        altering = Altering(transport, flip(45), 4)
        return train(altering, "codec=quantize(bits=4)", 4, sage())


def test_a_message_that_was_altered_ends_all_processes_with_its_place():
    for outcome in run_processes(3, train_altered, seconds=120):
        assert "layer 1, forward, from rank" in outcome.error
        assert "to rank 1, in epoch 2): its checksum does not fit" in outcome.error
        assert outcome.seconds < 60
