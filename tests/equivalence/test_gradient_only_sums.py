"""Neighbours whose sums are kept (`keep=sums`): two layers are exact, more are as if done the long way."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.equivalence.halo_runs import EPOCHS, IN, OUT, Stack, make_graph
from tests.equivalence.isolated_runs import (
    check_alike,
    check_equal,
    check_follows,
    mean_loss,
    models_of,
    parts_of,
    run_isolated,
    run_single,
)
from tests.equivalence.test_gradient_only import Weighted
from tests.equivalence.test_gradient_only_traffic import check_foretold
from tests.placing import place, start
from torch import nn
from torch_geometric.nn import APPNP, GCN, GIN, GINConv, GraphConv, GraphSAGE, SAGEConv, SGConv
from torch_geometric.utils import scatter

from laconic.cached.neighbour_cache import NeighbourCache
from laconic.comm.transport import run_ranks
from laconic.errors import UnsupportedModelError

SUMS = "keep=sums, turns=1, partitioner=random"
# One aggregation of features, and one of what was made of them.
TWO_LAYERS = {
    "GCN": lambda: GCN(IN, 8, 2, OUT),
    "GCN dropout": lambda: GCN(IN, 8, 2, OUT, dropout=0.4),
    "SAGE dropout": lambda: GraphSAGE(IN, 8, 2, OUT, dropout=0.4),
    "SAGE sum, jumping knowledge": lambda: GraphSAGE(IN, 8, 2, OUT, aggr="sum", jk="cat"),
    "SAGE project": lambda: GraphSAGE(IN, 8, 2, OUT, project=True),
    "GIN": lambda: GIN(IN, 8, 2, OUT),
    "GraphConv": lambda: Stack(GraphConv(IN, 8), nn.Tanh(), GraphConv(8, OUT)),
    "SGC": lambda: Stack(SGConv(IN, 8, K=3), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), SGConv(8, OUT)),
    "one layer": lambda: GraphSAGE(IN, 8, 1, OUT),
}
MORE_LAYERS = {
    "GCN": lambda: GCN(IN, 8, 3, OUT, dropout=0.3),
    "SAGE": lambda: GraphSAGE(IN, 8, 4, OUT),
    "SGC": lambda: Stack(SGConv(IN, 8, K=2), nn.ReLU(), SGConv(8, OUT, K=2)),
    "APPNP": lambda: Stack(nn.Linear(IN, 8), nn.ReLU(), nn.Linear(8, OUT), APPNP(3, 0.1)),
}


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("name", TWO_LAYERS)
def test_two_layers_on_ranks_are_two_layers_on_one_machine(name, num_ranks):
    """Though only gradients travel. With `project`, the first layer's sums are of what weights made of the features."""
    graph = make_graph()
    every = "refresh_every=1, codec=identity" if name == "SAGE project" else "refresh_every=4"
    ranks = run_isolated(TWO_LAYERS[name], graph, num_ranks, f"{SUMS}, {every}", EPOCHS)
    single = run_single(TWO_LAYERS[name], graph, EPOCHS)
    if name == "SAGE project":
        assert ranks[0].losses[0] == pytest.approx(single.losses[0], rel=0, abs=1e-10)
        return
    check_equal(single, ranks)


def test_edge_weights_and_ranks_without_nodes_are_no_exception():
    graph = make_graph(weighted=True)
    weighted = partial(Weighted, 2)
    check_equal(run_single(weighted, graph, EPOCHS), run_isolated(weighted, graph, 3, SUMS, EPOCHS))
    few = make_graph(5)
    assert len(set(parts_of(few, 8).tolist())) < 8
    model = TWO_LAYERS["SAGE dropout"]
    check_equal(run_single(model, few, EPOCHS), run_isolated(model, few, 8, SUMS, EPOCHS))


@pytest.mark.parametrize("name", ["SAGE dropout", "GCN dropout", "SAGE sum, jumping knowledge", "one layer"])
def test_with_few_labels_two_layers_are_exact_whatever_the_parts_and_compute_few_halo_rows(name):
    """By default: halo rows that no training row sees are left out, and the others need no turns."""
    graph = with_few_labels(make_graph())
    check_equal(
        run_single(TWO_LAYERS[name], graph, EPOCHS),
        run_isolated(TWO_LAYERS[name], graph, 4, "partitioner=random", EPOCHS),
    )

    def num_rows(transport):
        worker = start("gradient_only(partitioner=random)", graph, TWO_LAYERS[name]().double(), transport)
        placed = worker.placement.shard
        return placed.num_rows, len(placed.halo_ids), worker.start_epoch(1).num_rows

    rows = run_ranks(4, num_rows)
    assert all(num_halo > num_owned for num_owned, num_halo, _ in rows)
    assert all(num_computed < num_owned + num_halo for num_owned, num_halo, num_computed in rows)
    num_halo_computed = sum(num_computed - num_owned for num_owned, _, num_computed in rows)
    assert num_halo_computed == 0 if name == "one layer" else num_halo_computed > 0


@pytest.mark.parametrize("turns", ["", "turns=1, ", "turns=3, "])
def test_many_steps_hold_no_more_than_one(turns):
    graph = with_few_labels(make_graph())

    def num_rooms(transport):
        model = TWO_LAYERS["SAGE dropout"]().double()
        worker = start(f"gradient_only({turns}partitioner=random)", graph, model, transport)
        for epoch in range(1, 8):
            shard = worker.start_epoch(epoch)
            worker.share_loss(model(shard.x, shard.edge_index)[shard.train_rows].sum()).backward()
        parts = worker.cache.aggregator._copies
        return len({part.room.data_ptr() for part in [*parts._parts, *parts._spent]})

    # The features, and their sums.
    assert max(run_ranks(3, num_rooms)) == 2


class DroppedFeatures(nn.Module):
    """In evaluation the features are constant, in training they are not."""

    def __init__(self, num_layers):
        super().__init__()
        self.dropout, self.net = nn.Dropout(0.5), GraphSAGE(IN, 8, num_layers, OUT)

    def forward(self, x, edge_index):
        return self.net(self.dropout(x), edge_index)


@pytest.mark.parametrize("turns", ["", "turns=1, ", "turns=3, "])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_features_that_are_dropped_have_sums_of_their_own(num_layers, turns):
    """Of halo rows the sums of whole features are kept; with nothing dropped the loss is that of one machine."""
    settings, graph = f"{turns}partitioner=random, codec=identity, refresh_every=2", with_few_labels(make_graph())
    ranks = run_isolated(partial(DroppedFeatures, num_layers), graph, 3, settings, 5, foretold=True)
    check_foretold(ranks)
    check_alike(ranks)

    def undropped():
        model = DroppedFeatures(num_layers)
        # Not 0, which would leave the very tensor.
        model.dropout.p = 1e-300
        return model

    single = run_single(undropped, graph, 1)
    rank = run_isolated(undropped, graph, 3, settings, 1)[0]
    assert rank.losses == pytest.approx(single.losses, rel=0, abs=1e-10)


def test_a_layer_that_writes_into_what_is_kept_is_refused_on_all_ranks():
    def build():
        return Stack(GINConv(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(IN, 8))), GINConv(nn.Linear(8, OUT)))

    with pytest.raises(UnsupportedModelError, match="changes its input in place"):
        run_isolated(build, make_graph(), 3, "partitioner=random", 1)


def test_a_model_that_sums_up_more_often_in_evaluation_is_refused():
    class Sometimes(GraphSAGE):
        def forward(self, x, edge_index):
            out = super().forward(x, edge_index)
            return out if self.training else self.convs[0](x, edge_index)

    with pytest.raises(UnsupportedModelError, match="2 times in training and 3 times in evaluation"):
        run_isolated(lambda: Sometimes(IN, 8, 2, OUT), make_graph(), 3, "partitioner=random", 1)


def test_what_a_model_counts_of_itself_does_not_depend_on_turns():
    class Counting(GraphSAGE):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.register_buffer("num_passes", torch.zeros(1))

        def forward(self, x, edge_index):
            if self.training:
                self.num_passes += 1
            return super().forward(x, edge_index)

    graph = make_graph()

    def count(transport):
        model = Counting(IN, 8, 2, OUT).double()
        worker = start(f"gradient_only(turns={1 + 2 * transport.rank}, partitioner=random)", graph, model, transport)
        for epoch in range(1, 4):
            shard = worker.start_epoch(epoch)
            worker.share_loss(model(shard.x, shard.edge_index)[shard.train_rows].sum()).backward()
        return model.num_passes.item()

    assert run_ranks(2, count) == [3, 3]


class Summing:
    """The whole graph on one machine, trained as ranks do that keep each other's sums. SAGE by mean."""

    def __init__(self, model, graph, owner, num_ranks, num_turns, reach=1):
        self.model, self.graph, self.num_turns = model, graph, num_turns
        self.masks = [(owner == rank)[:, None] for rank in range(num_ranks)]
        self.halos = halos_of(graph, owner, num_ranks)
        # Rows whose sums are made in every step.
        self.summed = [mask | seen_from(graph.train_mask & mask[:, 0], graph, reach - 1) for mask in self.masks]

    def mean(self, x):
        source, target = self.graph.edge_index
        return scatter(x[source], target, dim=0, dim_size=len(x), reduce="mean")

    def run(self, rows_of, sums_of):
        """Args: what is made of rows, and of the sums of a layer by its number."""
        x = self.graph.x
        for number, layer in enumerate(self.model.layers):
            if isinstance(layer, SAGEConv):
                sums = sums_of(number, self.mean(rows_of(x) if number else x))
                x = layer.lin_l(sums) + layer.lin_r(x)
            else:
                x = layer(x)
        return x

    def refresh(self):
        self.sums = {}
        with torch.no_grad():
            self.run(lambda rows: rows, self.sums.setdefault)

    def loss(self, epoch):
        graph, total, every = self.graph, 0.0, self.num_turns
        for mask, halo, summed in zip(self.masks, self.halos, self.summed, strict=True):
            group = torch.zeros_like(mask) if every > 1 else torch.ones_like(mask)
            group[halo[epoch % every :: every]] = True

            def rows_of(x, own=mask, group=group):
                counting_for_all = x.detach() + every * (x - x.detach())
                return torch.where(own, x, torch.where(group, counting_for_all, x.detach()))

            out = self.run(rows_of, lambda number, sums, here=summed: torch.where(here, sums, self.sums[number]))
            rows = graph.train_mask & mask[:, 0]
            total = total + F.cross_entropy(out[rows], graph.y[rows], reduction="sum")
        return total / graph.train_mask.sum()


def halos_of(graph, owner, num_ranks):
    """Rows of the graph that each rank has as its halo, in its order, and that the loss of four layers depends on."""

    def halo_of(transport):
        return place("gradient_only(partitioner=random)", graph, ranks=transport).shard.halo_ids

    row_of = {node: row for row, node in enumerate(graph.node_ids.tolist())}
    halos = [torch.tensor([row_of[node] for node in halo.tolist()]) for halo in run_ranks(num_ranks, halo_of)]
    seen_by = [
        seen_from(graph.train_mask & (owner == rank), graph, 3, by_way_of=owner == rank)[:, 0]
        for rank in range(num_ranks)
    ]
    chosen = [halo[seen[halo]] for halo, seen in zip(halos, seen_by, strict=True)]
    # Few are not worth leaving out.
    return [few if len(few) <= 0.9 * len(halo) else halo for few, halo in zip(chosen, halos, strict=True)]


def seen_from(rows, graph, num_edges, by_way_of=True):
    """All that rows see over so many edges, (N, 1)."""
    source, target = graph.edge_index
    for _ in range(num_edges):
        rows = rows.clone()
        rows[source[(rows & by_way_of)[target]]] = True
    return rows[:, None]


def with_few_labels(graph):
    return replace(graph, train_mask=graph.train_mask & (torch.arange(graph.num_nodes) % 5 == 0))


@pytest.mark.parametrize("has_few_labels", [False, True])
@pytest.mark.parametrize(("num_ranks", "num_turns", "reach"), [(2, 1, 1), (3, 1, 1), (3, 2, 1), (2, 5, 1), (3, 1, 2)])
def test_of_deeper_layers_old_sums_of_halo_rows_are_kept(num_ranks, num_turns, reach, has_few_labels):
    """Weights are today's. With several turns, gradients flow through the rows of one group, and count for all."""

    def build():
        return Stack(SAGEConv(IN, 8), nn.ReLU(), SAGEConv(8, 8), nn.Tanh(), SAGEConv(8, 8), nn.ReLU(), SAGEConv(8, OUT))

    graph, epochs, every = make_graph(), 7, 3
    graph = with_few_labels(graph) if has_few_labels else graph
    plain = models_of(build, 1)[0]
    reference = Summing(plain, graph, parts_of(graph, num_ranks), num_ranks, num_turns, reach)
    settings = (
        f"turns={num_turns}, reach={reach}, partitioner=random, refresh_every={every}, gradual=False, codec=identity"
    )
    rank = run_isolated(build, graph, num_ranks, settings, epochs)[0]

    def loss_of(epoch):
        if epoch % every == 0:
            reference.refresh()
        # Counted from 1 there.
        return reference.loss(epoch + 1)

    check_follows(rank, plain, loss_of, epochs)


@pytest.mark.parametrize("name", ["GCN", "SAGE dropout", "GraphConv", "SGC"])
def test_gradients_of_all_turns_are_on_average_those_of_one_machine(name):
    """With weights that stand still, and without dropout, which draws anew in every step."""
    graph, num_turns = make_graph(), 4

    def build():
        model = TWO_LAYERS[name]()
        for module in model.modules():
            if hasattr(module, "dropout"):
                module.dropout = nn.Dropout(0.0) if isinstance(module.dropout, nn.Module) else 0.0
        return model

    settings = f"gradient_only(turns={num_turns}, partitioner=random)"
    models, whole = models_of(build, 3), models_of(build, 1)[0]
    expected = mean_loss(whole, graph)
    expected.backward()

    def gradients(transport):
        model = models[transport.rank]
        worker = start(settings, graph, model, transport)
        for epoch in range(1, num_turns + 1):
            shard = worker.start_epoch(epoch)
            rows = shard.train_rows
            loss = F.cross_entropy(model(shard.x, shard.edge_index)[rows], shard.y[rows], reduction="sum")
            loss = worker.share_loss(loss / worker.num_train)
            assert loss.item() == pytest.approx(expected.item(), rel=0, abs=1e-10)
            loss.backward()
        return [parameter.grad / num_turns for parameter in model.parameters()]

    for mine, parameter in zip(run_ranks(3, gradients)[0], whole.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["GCN dropout", "SAGE dropout", "SAGE sum, jumping knowledge"])
def test_with_turns_the_first_loss_of_two_layers_is_that_of_one_machine(name):
    """Dropout included, which the rows of all groups have as their owners do."""
    single = run_single(TWO_LAYERS[name], make_graph(), 1)
    for rank in run_isolated(TWO_LAYERS[name], make_graph(), 3, "turns=3, partitioner=random", 1):
        assert rank.losses == pytest.approx(single.losses, rel=0, abs=1e-10)


@pytest.mark.parametrize("kept", ["turns=1, reach=1", "turns=3, reach=1", "turns=1, reach=2", "keep=sums"])
@pytest.mark.parametrize("codec", ["identity", "quantize(bits=4, stochastic=False)"])
@pytest.mark.parametrize("name", MORE_LAYERS)
def test_every_epoch_costs_what_was_predicted(name, codec, kept):
    settings = f"{kept}, partitioner=random, refresh_every=2, codec={codec}"
    ranks = run_isolated(MORE_LAYERS[name], make_graph(), 3, settings, 5, foretold=True)
    check_foretold(ranks)
    check_alike(ranks)


def test_two_layers_send_nothing_but_gradients_after_the_first_epoch():
    ranks = run_isolated(TWO_LAYERS["SAGE dropout"], make_graph(), 3, f"{SUMS}, refresh_every=1", 4, foretold=True)
    check_foretold(ranks)
    for rank in ranks:
        phases = [{row.phase for row in rows} - {"evaluation"} for rows in rank.counted]
        assert "repartition" in phases[0]
        assert phases[1:] == [{"gradients"}] * 3


@pytest.mark.parametrize(
    ("num_layers", "turns", "reach", "num_refreshes"),
    [(1, 1, 1, 1), (2, 1, 1, 1), (3, 1, 1, 4), (3, 1, 2, 1), (4, 1, 2, 4), (2, 2, 1, 1), (3, 2, 1, 4)],
)
def test_a_pass_that_would_bring_nothing_is_not_made(num_layers, turns, reach, num_refreshes, monkeypatch):
    passes, run = [], NeighbourCache._run
    monkeypatch.setattr(NeighbourCache, "_run", lambda *given: (passes.append(1), run(*given)))
    settings = f"turns={turns}, reach={reach}, partitioner=random, refresh_every=1"
    ranks = run_isolated(lambda: GraphSAGE(IN, 8, num_layers, OUT), make_graph(), 2, settings, 4)
    check_alike(ranks)
    assert len(passes) == 2 * num_refreshes
