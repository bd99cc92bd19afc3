"""What a model is asked for before it trains comes from one run on a few rows."""

import numpy as np
import pytest
import torch
from tests.equivalence.halo_runs import Stack
from tests.placing import place, start
from tests.unit.sharded.product_runs import random_graph
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.nn import GAT, GCN, GINConv, GraphSAGE, SAGEConv, SGConv

import laconic.cached.neighbour_cache
import laconic.sharded.tiny_run
import laconic.sharded.trace
from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.errors import UnsupportedModelError
from laconic.graph import Shard
from laconic.sharded.reach import with_reach
from laconic.sharded.trace import Traces, _FlopCounter
from laconic.sharded.trial import Trial

IN, OUT = 6, 4
GRAPH = random_graph(60, 200, num_features=IN)


def on_two_ranks(function):
    """The results of two ranks, which are threads."""
    return run_ranks(2, lambda transport: function(Communicator(transport, Ledger(transport.rank))), timeout=120)


def trace_of(model, reach=0):
    text = "exchange(edges=destination, reach=0)"
    return on_two_ranks(lambda ranks: Traces(model).of(with_reach(place(text, GRAPH, model, ranks).placement, reach)))[
        0
    ]


@pytest.mark.parametrize(
    ("build", "changes", "in_evaluation"),
    [
        (lambda: GCN(IN, 5, 3, OUT), (False, True, True), (False, True, True)),
        (lambda: SGConv(IN, OUT, K=3), (False, False, False), (False, False, False)),
        # Features under dropout are constant in evaluation alone.
        (lambda: Stack(nn.Dropout(0.5), SAGEConv(IN, 5), SAGEConv(5, OUT)), (True, True), (False, True)),
        (lambda: GAT(IN, 5, 2, OUT), (False, True), (False, True)),
    ],
)
def test_a_trace_knows_which_sums_change_and_how_far_the_loss_sees(build, changes, in_evaluation):
    trace = trace_of(build().double())
    assert trace.changes_in_training == changes
    assert trace.changes_in_evaluation == in_evaluation
    assert trace.num_hops == sum(changes)


def test_operations_are_those_that_torch_counts():
    model, x = nn.Sequential(nn.Linear(IN, 5), nn.ReLU(), nn.Linear(5, OUT)), torch.ones(3, IN)
    totals = []
    for counter in (FlopCounterMode(display=False), _FlopCounter()):
        with counter:
            model(x).sum().backward()
        totals.append(counter.get_total_flops() if isinstance(counter, FlopCounterMode) else counter.total)
    assert totals[0] == totals[1] > 0


def test_every_hop_costs_operations():
    model = GraphSAGE(IN, 8, 3, OUT).double()
    flops = [trace_of(model, reach).flops for reach in (0, 1, 2)]
    assert flops[0] < flops[1] < flops[2]


@pytest.fixture
def runs(monkeypatch):
    """Grows by one with every run of a model, whoever runs it."""
    seen = []

    def counted(*given):
        seen.append(given)
        return run_model(*given)

    for module in (laconic.sharded.tiny_run, laconic.sharded.trace, laconic.cached.neighbour_cache):
        monkeypatch.setattr(module, "run_model", counted)
    return seen


@pytest.mark.parametrize(
    ("text", "at_start", "to_predict"),
    [
        # Tried on one machine and on two ranks, in both modes; traced with 0, 1 and 2 hops, and with a second hop that
        # has no row; tried with hops.
        ("exchange", 6 + 4 * 2 + 4, 0),
        ("exchange(reach=0)", 6, 2),
        # Traced once for the plan, and once on the grid that it chose.
        ("full_graph", 2 + 6, 2),
        # A refresh, a step, an evaluation, another refresh.
        ("gradient_only(keep=rows)", 6, 4),
        ("grappa", 6, 2),
    ],
)
def test_a_model_runs_once_for_each_thing_to_know(text, at_start, to_predict, runs):
    def count(ranks):
        model = GraphSAGE(IN, 8, 3, OUT).double()
        placed = place(text, GRAPH, model, ranks)
        placed.check()
        worker = placed.start(0)
        ranks.barrier()
        before = len(runs)
        ranks.barrier()
        first = worker.predict_traffic(1)
        ranks.barrier()
        after = len(runs)
        ranks.barrier()
        assert worker.predict_traffic(1) == first
        assert worker.predict_traffic(2)
        ranks.barrier()
        return before, after, len(runs)

    before, after, last = on_two_ranks(count)[0]
    assert (before / 2, (after - before) / 2) == (at_start, to_predict)
    assert last == after


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_sums_that_a_layer_writes_into_are_predicted_to_come_again(mode):
    class Halved(nn.Module):
        def forward(self, x):
            return x.mul_(0.5) if self.training == (mode == "training") else x * 0.5

    def run(ranks):
        model = Stack(GINConv(nn.Sequential(Halved(), nn.Linear(IN, 5))), GINConv(nn.Linear(5, OUT))).double()
        worker = start("exchange(edges=destination, reach=0)", GRAPH, model, ranks)
        predicted = [row for row in worker.predict_traffic(2) if row.epoch]
        for epoch in (1, 2):
            ranks.ledger.take(0)
            shard = worker.start_epoch(epoch)
            worker.share_loss(run_model(model.train(), shard).sum(), 1.0).backward()
            with torch.no_grad():
                run_model(model.eval(), shard)
        assert "setup" in {row.phase for row in predicted}
        return predicted == ranks.ledger.take(2)

    assert on_two_ranks(run) == [True, True]


def test_a_model_that_draws_by_other_means_than_torch_is_told_so():
    random = np.random.default_rng(0)

    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(IN, OUT)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index) * random.random()

    with pytest.raises(UnsupportedModelError, match="draws random numbers itself"):
        Trial.of(Drawing().double(), Shard.whole(GRAPH)).check()


def test_hops_are_compared_with_the_runs_that_are_there(runs):
    trial = Trial.of(GraphSAGE(IN, 8, 2, OUT).double(), Shard.whole(GRAPH))
    trial.check()
    del runs[:]
    assert trial.why_not_hops(1) is None
    assert len(runs) == 4
