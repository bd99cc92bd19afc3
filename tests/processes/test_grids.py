"""Grids of ranks that are real processes and talk by gloo: results are those of one machine, bytes those predicted."""

import dataclasses

import numpy as np
import torch
from tests.equivalence.halo_runs import IN, OUT, Outcome, check_traffic, make_graph, train
from tests.processes.rank_processes import run_processes
from torch_geometric.nn import GraphSAGE

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import connect
from laconic.comm.transport.local import LocalTransport

EPOCHS = 3
SETTINGS = (
    'grid="2d"',
    'grid="grid(pi=1, pk=2, pj=2)"',
    'grid="1.5d_replicated(c=2)"',
    'grid="2d_summa"',
    'grid="1d", staged=True',
    'grid="2d", staged=True',
)


def build():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GraphSAGE(IN, 7, 3, OUT, dropout=0.3).double()


def train_on_grids(environment) -> list[Outcome]:
    with connect(environment, timeout=60) as transport:
        communicators = [Communicator(transport, Ledger(transport.rank)) for _ in SETTINGS]
        outcomes = [
            train(f"full_graph({setting})", make_graph(), build(), communicator, EPOCHS)
            for setting, communicator in zip(SETTINGS, communicators, strict=True)
        ]
    # Plain numbers: a tensor would be handed over in memory that goes with this process.
    return [
        dataclasses.replace(
            each, predictions={node: row.tolist() for node, row in each.predictions.items()}, gradients={}, state={}
        )
        for each in outcomes
    ]


def test_processes_on_grids_learn_what_one_machine_does():
    single = train("single", make_graph(), build(), Communicator(LocalTransport(), Ledger(0)), EPOCHS)
    # Every process loads PyG and the kernels for itself.
    outcomes = run_processes(4, train_on_grids, seconds=120)
    assert all(outcome.value for outcome in outcomes), [outcome.error for outcome in outcomes]
    for ranks in zip(*(outcome.value for outcome in outcomes), strict=True):
        check_traffic(ranks)
        for rank in ranks:
            np.testing.assert_allclose(rank.losses, single.losses, rtol=0, atol=1e-10)
            for node, logits in rank.predictions.items():
                np.testing.assert_allclose(logits, single.predictions[node], rtol=0, atol=1e-9)
        assert sum(len(rank.predictions) for rank in ranks) == len(single.predictions)
