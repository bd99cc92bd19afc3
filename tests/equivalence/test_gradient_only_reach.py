"""Rows of other ranks that are computed in full (`reach`): deep models are exact, though only gradients travel."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.equivalence.halo_runs import EPOCHS, IN, OUT, Stack, make_graph
from tests.equivalence.isolated_runs import OwnConv, check_equal, parts_of, run_isolated, run_single
from tests.equivalence.test_gradient_only import Weighted
from tests.equivalence.test_gradient_only_sums import DroppedFeatures, with_few_labels
from tests.equivalence.test_gradient_only_traffic import check_foretold
from tests.placing import start
from torch import nn
from torch_geometric.nn import APPNP, GAT, GCN, GIN, GraphSAGE, SGConv

from laconic.comm.transport import run_ranks
from laconic.errors import ConfigError
from laconic.strategies.gradient_only import PlacedApart

# With how many hops they see.
DEEP = {
    "GCN-3 dropout": (2, lambda: GCN(IN, 8, 3, OUT, dropout=0.4)),
    "SAGE-4 dropout": (3, lambda: GraphSAGE(IN, 8, 4, OUT, dropout=0.4)),
    "SAGE-3 sum, jumping knowledge": (2, lambda: GraphSAGE(IN, 8, 3, OUT, aggr="sum", jk="cat")),
    "GIN-3": (2, lambda: GIN(IN, 8, 3, OUT)),
    "SGC": (2, lambda: Stack(SGConv(IN, 8, K=2), nn.Tanh(), SGConv(8, OUT, K=2))),
    "APPNP": (3, lambda: Stack(nn.Linear(IN, 8), nn.Tanh(), nn.Linear(8, OUT), APPNP(3, 0.1))),
    "features dropped": (3, partial(DroppedFeatures, 3)),
}


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", DEEP)
def test_deep_models_on_ranks_are_those_on_one_machine(name, num_ranks):
    num_hops, build = DEEP[name]
    graph, settings = make_graph(), f"reach={num_hops}, turns=1, partitioner=random, refresh_every=4"
    ranks = run_isolated(build, graph, num_ranks, settings, EPOCHS)
    check_equal(run_single(build, graph, EPOCHS), ranks)
    for rank in ranks:
        assert all(row.phase in ("gradients", "evaluation") for rows in rank.counted[1:] for row in rows)


# Models that keep rows, and how many layers they have.
OF_ROWS = {
    "GAT-2 dropout": (2, lambda: GAT(IN, 8, 2, OUT, heads=2, dropout=0.4)),
    "GAT-3": (3, lambda: GAT(IN, 8, 3, OUT, heads=2)),
    "SAGE-2 max": (2, lambda: GraphSAGE(IN, 8, 2, OUT, aggr="max")),
    "GCN-2 dropout": (2, lambda: GCN(IN, 8, 2, OUT, dropout=0.4)),
    "user's own": (2, lambda: Stack(OwnConv(IN, 8), nn.Tanh(), OwnConv(8, OUT))),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_with_rows_a_reach_of_as_many_hops_as_layers_is_one_machine(name):
    num_layers, build = OF_ROWS[name]
    graph, settings = make_graph(), f"keep=rows, reach={num_layers}, partitioner=random, refresh_every=4"
    check_equal(run_single(build, graph, EPOCHS), run_isolated(build, graph, 3, settings, EPOCHS))
    check_foretold(run_isolated(build, graph, 3, settings, 6, foretold=True))


def test_edge_weights_and_ranks_without_nodes_are_no_exception():
    graph, weighted = make_graph(weighted=True), partial(Weighted, 3)
    settings = "reach=2, turns=1, partitioner=random"
    check_equal(run_single(weighted, graph, EPOCHS), run_isolated(weighted, graph, 3, settings, EPOCHS))
    few = make_graph(5)
    assert len(set(parts_of(few, 8).tolist())) < 8
    build = DEEP["GCN-3 dropout"][1]
    check_equal(run_single(build, few, EPOCHS), run_isolated(build, few, 8, settings, EPOCHS))


@pytest.mark.parametrize("name", ["GCN-3 dropout", "SAGE-4 dropout"])
def test_by_default_few_labels_are_exact(name):
    build, graph = DEEP[name][1], on_a_ring(make_graph())
    settings = "partitioner=random, refresh_every=2"
    check_equal(run_single(build, graph, EPOCHS), run_isolated(build, graph, 3, settings, EPOCHS))
    check_foretold(run_isolated(build, graph, 3, settings, 4, foretold=True))


def on_a_ring(graph):
    """Few rows are seen from a few labels, over any number of ranks."""
    nodes = torch.arange(graph.num_nodes)
    return replace(with_few_labels(graph), edge_index=torch.stack([nodes, nodes.roll(1)]))


def test_by_default_rows_are_taken_in_as_far_as_they_are_few():
    def expanded(transport, graph, settings):
        worker = start(
            f"gradient_only(partitioner=random{settings})", graph, DEEP["SAGE-4 dropout"][1]().double(), transport
        )
        found = worker.cache.halo
        num_added = found.placement.shard.num_rows - worker.shard.num_rows
        return found.reach, found.is_whole, num_added

    many, few = make_graph(), on_a_ring(make_graph())
    for graph, settings, expected in [
        (many, "", (1, False)),
        (many, ", reach=2", (2, False)),
        (many, ", reach=9", (3, True)),
        (few, "", (3, True)),
        (few, ", reach=1", (1, False)),
    ]:
        found = run_ranks(4, partial(expanded, graph=graph, settings=settings))
        assert {(reach, is_whole) for reach, is_whole, _ in found} == {expected}
        assert (max(num_added for _, _, num_added in found) > 0) == (expected[0] > 1)


def hooked_after_attach(model):
    """Behind a hook a GCN's first Linear comes before its sums, which then change: the model sees a hop more."""
    for conv in model.convs:
        conv.lin.register_forward_hook(lambda *given: None)


def test_a_model_that_sees_further_than_it_did_when_attached_is_refreshed(monkeypatch):
    graph, build = make_graph(), lambda: GCN(IN, 8, 2, OUT)
    start_worker = PlacedApart.start

    def start_and_hook(placed, seed):
        worker = start_worker(placed, seed)
        hooked_after_attach(worker.model)
        return worker

    monkeypatch.setattr(PlacedApart, "start", start_and_hook)
    ranks = run_isolated(build, graph, 3, "turns=1, partitioner=random, refresh_every=1, codec=identity", 4)
    single = run_single(build, graph, 4)
    # The first loss after a refresh is exact; gradients are not, so later ones only nearly are.
    assert ranks[0].losses[0] == pytest.approx(single.losses[0], rel=0, abs=1e-10)
    assert all("repartition" in {row.phase for row in rows} for rows in ranks[0].counted)


@pytest.mark.parametrize(
    ("settings", "first_epoch_refused"),
    # With as many labels nothing is taken in by default, and features may change until they are fetched.
    [("reach=2, ", 1), ("reach=2, ", 2), ("", 2), ("keep=rows, ", 2)],
)
def test_features_that_change_after_others_have_them_are_refused(settings, first_epoch_refused):
    graph = make_graph()

    def run(transport):
        worker = start(
            f"gradient_only({settings}partitioner=random)", graph, DEEP["GCN-3 dropout"][1]().double(), transport
        )
        shard = worker.shard
        if "reach" not in settings:
            shard.x.mul_(2)
        for epoch in range(1, first_epoch_refused):
            worker.start_epoch(epoch)
        shard.x.mul_(2)
        with pytest.raises(ConfigError, match="changed in place after other ranks had taken copies"):
            worker.start_epoch(first_epoch_refused)

    run_ranks(3, run)


@pytest.mark.parametrize("keep", ["rows", "sums"])
def test_an_evaluation_does_not_mix_features_from_before_and_after_a_change(keep):
    graph = make_graph()

    def run(transport):
        model = DEEP["GCN-3 dropout"][1]().double()
        worker = start(f"gradient_only(keep={keep}, partitioner=random)", graph, model, transport)
        shard = worker.start_epoch(1)
        shard.x.mul_(2)
        with pytest.raises(ConfigError, match="changed in place after other ranks had taken copies"):
            model.eval()(shard.x, shard.edge_index)

    run_ranks(3, run)
