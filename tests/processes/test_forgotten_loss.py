"""A loop without session.loss, on ranks that are real processes: each ends with the line to write, and none waits."""

import torch
import torch.nn.functional as F
from tests.equivalence.halo_runs import IN, OUT, make_graph
from tests.processes.rank_processes import Environment, run_processes
from torch_geometric.nn import GCN

import laconic
from laconic.comm import Communicator, Ledger, connect


def forget(environment: Environment) -> None:
    torch.set_num_threads(1)
    with connect(environment, timeout=60.0) as transport:
        session = laconic.join(make_graph(), communicator=Communicator(transport, Ledger(transport.rank)))
        model = session.attach(GCN(IN, 8, 2, OUT).double())
        optimizer = torch.optim.Adam(model.parameters())
        for _, shard in session.epochs(3):
            out = model(shard.x, shard.edge_index)
            optimizer.zero_grad()
            F.cross_entropy(out[shard.train_mask], shard.y[shard.train_mask]).backward()
            optimizer.step()


def test_a_loop_without_session_loss_ends_every_process_at_its_first_step():
    errors = [outcome.error for outcome in run_processes(2, forget, seconds=120)]
    # One that is slower may hear of the other's before it gets to its own.
    for error in errors:
        assert "ConfigError: This backward pass does not come from session.loss" in error
    line = "loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)"
    assert any(error.startswith("ConfigError") and line in error for error in errors)
