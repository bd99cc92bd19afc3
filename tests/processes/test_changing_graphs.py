"""A graph that changes while ranks that are real processes train on it by gloo."""

import numpy as np
import torch
from tests.equivalence.change_runs import Seen, begin, changed_graph, check_predicted, draw_change, run_changing, train
from tests.equivalence.coded_runs import sage, with_ways
from tests.equivalence.halo_runs import make_graph
from tests.processes.rank_processes import run_processes

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import connect

TEXT = "codec=error_feedback(codec=topk), schedule=constant(value=8.0)"


def changes() -> dict:
    graph = make_graph(90)
    first = draw_change(graph, 0)
    return {2: [first], 3: [draw_change(changed_graph(graph, first), 1, first_id=6000)]}


def train_on_rank(environment) -> Seen:
    torch.set_num_threads(1)
    with connect(environment, timeout=60) as transport:
        model, communicator, seen = sage(), Communicator(transport, Ledger(transport.rank)), Seen()
        worker = begin(f"exchange({with_ways(TEXT)}, partitioner=random)", make_graph(90), model, communicator)
        train(worker, communicator, seen, torch.optim.Adam(model.parameters(), lr=0.01), [1, 2, 3, 4], changes())
    # Plain numbers: a tensor would be handed over in memory that goes with this process.
    return Seen(losses=seen.losses, counted=seen.counted, predicted=seen.predicted)


def test_processes_change_their_graph_as_threads_do():
    threads = run_changing(TEXT, changes(), graph=make_graph(90), last=4)
    outcomes = run_processes(3, train_on_rank, seconds=120)
    assert all(outcome.value for outcome in outcomes), [outcome.error for outcome in outcomes]
    check_predicted([outcome.value for outcome in outcomes])
    for outcome, thread in zip(outcomes, threads, strict=True):
        np.testing.assert_allclose(list(outcome.value.losses.values()), list(thread.losses.values()), rtol=0, atol=1e-9)
        assert outcome.value.counted == thread.counted
