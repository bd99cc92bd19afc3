"""Runs of one model on one machine and on a grid of ranks that are threads."""

import copy
from collections.abc import Callable

import torch
from tests.equivalence.halo_runs import Outcome, train
from torch import nn

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.graph import Graph


def grid_outcomes(
    build: Callable[[], nn.Module],
    graph: Graph,
    num_ranks: int,
    grid: str,
    epochs: int,
    exchange: str = "sparse",
    options: str = "",
) -> tuple[Outcome, list[Outcome]]:
    """Returns what one machine, and each rank of a grid, saw; `options` are further settings, such as "staged=True"."""
    torch.manual_seed(0)
    model = build().double()
    copies = [copy.deepcopy(model) for _ in range(num_ranks)]
    for other in copies[1:]:
        # Only rank 0's weights count.
        nn.init.zeros_(next(other.parameters()))
    text = f'full_graph(grid="{grid}", exchange={exchange}, partitioner=random{options and ", "}{options})'

    def run(transport):
        torch.get_num_threads()
        torch.set_num_threads(1)
        return train(text, graph, copies[transport.rank], Communicator(transport, Ledger(transport.rank)), epochs)

    single = train("single", graph, model, Communicator(LocalTransport(), Ledger(0)), epochs)
    return single, run_ranks(num_ranks, run)
