"""Rows fetched, summed up at their owner, or computed here: every mixture gives what one machine computes.

In float64: losses, predictions and gradients of the first step to 1e-10, parameters after 20 epochs of Adam to 1e-8.
And what was predicted is what was counted, as integers.
"""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.equivalence.coded_runs import check_predicted, run_coded, sage, total
from tests.equivalence.halo_runs import EPOCHS, IN, OUT, Stack, check_equal, check_traffic, make_graph, outcomes
from tests.placing import place, start
from torch import nn
from torch_geometric.nn import APPNP, GAT, GCN, GIN, GATConv, GCNConv, GraphConv, GraphSAGE, SGConv

from laconic.comm import run_ranks
from laconic.errors import CheckpointError, ConfigError, UnsupportedModelError
from laconic.sharded import reach_choice
from laconic.sharded.reach import with_reach
from laconic.sharded.trace import Traces
from laconic.strategies import parse_strategy


class Residual(nn.Module):
    """Skip connections over one layer and over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = GCNConv(IN, 8), GCNConv(8, 8), GCNConv(8, OUT)
        self.skip = nn.Linear(IN, OUT)

    def forward(self, x, edge_index):
        first = self.first(x, edge_index).relu()
        second = first + F.dropout(self.second(first, edge_index).relu(), 0.3, self.training)
        return self.third(second, edge_index) + self.skip(x)


MODELS = {
    "GCN-3": lambda: GCN(IN, 8, 3, OUT, dropout=0.4),
    "SAGE-3": lambda: GraphSAGE(IN, 8, 3, OUT, dropout=0.3),
    "SAGE-4 narrow": lambda: GraphSAGE(IN, 3, 4, OUT),
    "GIN": lambda: GIN(IN, 8, 3, OUT, norm="batch_norm", train_eps=True),
    "SGC": lambda: Stack(SGConv(IN, 8, K=2), nn.ReLU(), SGConv(8, OUT, K=2)),
    "APPNP": lambda: Stack(nn.Linear(IN, OUT), APPNP(K=3, alpha=0.1)),
    "APPNP edge dropout": lambda: Stack(nn.Linear(IN, OUT), APPNP(K=3, alpha=0.1, dropout=0.5)),
    "GraphConv": lambda: Stack(GraphConv(IN, 8), nn.ReLU(), GraphConv(8, 8), nn.ReLU(), GraphConv(8, OUT, aggr="mean")),
    "input dropout": lambda: Stack(nn.Dropout(0.5), GCNConv(IN, 8), nn.ReLU(), GCNConv(8, 8), GCNConv(8, OUT)),
    "batch norm": lambda: GCN(IN, 8, 3, OUT, norm="batch_norm", dropout=0.2),
    "graph norm": lambda: GraphSAGE(IN, 8, 3, OUT, norm="graph_norm"),
    "jumping knowledge": lambda: GCN(IN, 8, 3, OUT, jk="cat", dropout=0.2),
    "jumping knowledge max": lambda: GraphSAGE(IN, 8, 3, OUT, jk="max"),
    "jumping knowledge lstm": lambda: GraphSAGE(IN, 8, 3, OUT, jk="lstm"),
    "residual": Residual,
}
EDGES = ["destination", "source", "cover"]


REACHES = [0, 1, 2]
RANKS = [1, 2, 3, 4, 8]
# Every pair of two values: each model on each number of ranks, with edges and reach in turn.
CASES = [
    (name, EDGES[(number + turn) % 3], REACHES[(number // 3 + turn) % 3], num_ranks)
    for number, name in enumerate(MODELS)
    for turn, num_ranks in enumerate(RANKS)
]


def check_way(name: str, edges: str, reach: int, num_ranks: int) -> None:
    """Trains a model on one machine and on ranks, and compares."""
    settings = f", edges={edges}, reach={reach}"
    partitioner = "metis" if num_ranks in (2, 8) else "random"
    single, ranks = outcomes(MODELS[name], make_graph(), num_ranks, partitioner, EPOCHS, settings)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize(("name", "edges", "reach", "num_ranks"), CASES)
def test_every_way_gives_what_one_machine_computes(name, edges, reach, num_ranks):
    check_way(name, edges, reach, num_ranks)


def test_the_cases_cover_every_pair_of_values():
    factors = [list(MODELS), EDGES, REACHES, RANKS]
    for first, second in itertools.combinations(range(len(factors)), 2):
        covered = {(case[first], case[second]) for case in CASES}
        assert covered == set(itertools.product(factors[first], factors[second]))


@pytest.mark.parametrize(("edges", "reach"), [("cover", 1), ("source", 2), ("cover", 0)])
def test_equal_edges_with_weights_of_their_own_give_the_same(edges, reach):
    graph = make_graph(weighted=True)
    ends = torch.cat([graph.edge_index, graph.edge_index[:, ::3]], dim=1)
    weight = torch.cat([graph.edge_weight, 2 * graph.edge_weight[::3]])
    graph = replace(graph, edge_index=ends, edge_weight=weight)
    single, ranks = outcomes(MODELS["GCN-3"], graph, 3, "random", 5, f", edges={edges}, reach={reach}")
    check_equal(single, ranks)
    check_traffic(ranks)


def test_two_rows_on_each_rank_are_enough_for_a_reach():
    single, ranks = outcomes(MODELS["residual"], make_graph(6), 3, "random", 5, ", edges=cover, reach=2")
    check_equal(single, ranks)
    check_traffic(ranks)


CODECS = ["quantize(bits=2)", "subset", "topk", "error_feedback(codec=topk)", "cache", "stale(codec=error_feedback)"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("edges", "reach"), [("source", 0), ("cover", 0), ("cover", 1)])
def test_codecs_write_rows_and_sums_of_every_way_in_the_bytes_that_were_predicted(codec, edges, reach):
    ways = f"edges={edges}, reach={reach}"
    coded = run_coded(f"codec={codec}, schedule=constant(value=4.0), {ways}", 4)
    check_predicted(coded)
    exact = run_coded(f"codec=identity, {ways}", 4)
    assert 0 < total(coded, epoch=4) < total(exact, epoch=4)
    for run in coded[1:]:
        assert run.losses == coded[0].losses


@pytest.mark.parametrize("codec", CODECS)
def test_at_rate_1_codecs_are_exact_under_cover_and_reach(codec):
    exact = run_coded("codec=identity, edges=cover, reach=1", 4)
    coded = run_coded(f"codec={codec}, schedule=constant(value=1.0), edges=cover, reach=1", 4)
    assert coded[0].losses == exact[0].losses
    for name, value in exact[0].model.items():
        assert torch.equal(coded[0].model[name], value)


def test_a_run_with_memories_under_cover_is_continued_as_if_it_had_never_stopped():
    text = "codec=error_feedback(codec=topk), schedule=constant(value=4.0), edges=cover, reach=1"
    whole, again = run_coded(text, 6), run_coded(text, 6, resume_at=3)
    assert whole[0].losses == again[0].losses


def test_with_a_hop_for_every_exchange_nothing_but_gradients_travels_in_training():
    _, ranks = outcomes(MODELS["SAGE-3"], make_graph(), 3, "random", 2, ", reach=2")
    for rank in ranks:
        rows = [row for row in rank.counted[2] if row.operation == "all_to_all"]
        assert {row.phase for row in rows} <= {"evaluation"}


def test_attention_keeps_its_edges_at_the_destination_and_linear_layers_are_covered():
    def build():
        return Stack(GCNConv(IN, 8), nn.ReLU(), GATConv(8, OUT))

    single, ranks = outcomes(build, make_graph(), 3, "random", EPOCHS, ", edges=cover")
    check_equal(single, ranks)
    check_traffic(ranks)


REFUSED = [
    ("reach=1", lambda: GAT(IN, 8, 2, OUT), r"convs\.0 is a GATConv.*no fixed matrix"),
    ("reach=3", lambda: GraphSAGE(IN, 8, 3, OUT), "exchanges rows 2 times. Use reach=2"),
    ("edges=cover, codec=quantize(bits=2)", lambda: GAT(IN, 8, 2, OUT), "Use edges=destination"),
]


@pytest.mark.parametrize(("settings", "build", "told"), REFUSED)
def test_what_cannot_be_done_is_refused_with_what_can(settings, build, told):
    with pytest.raises((UnsupportedModelError, ConfigError), match=told):
        outcomes(build, make_graph(), 3, "random", 1, f", {settings}")


class WritesInPlace(nn.Module):
    """Adds inner rows to a tensor that has outer ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = GCNConv(IN, 8), GCNConv(8, 8), GCNConv(8, OUT)

    def forward(self, x, edge_index):
        total, hidden = x.new_zeros(x.size(0), 8), x
        for conv in (self.first, self.second):
            hidden = conv(hidden, edge_index).relu()
            total.add_(hidden)
        return self.last(total, edge_index)


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_hops_would_change_exchanges_its_rows_or_refuses_a_reach():
    single, ranks = outcomes(WritesInPlace, make_graph(), 3, "random", 3, ", link_mbit=0.001")
    check_equal(single, ranks)
    with pytest.raises(UnsupportedModelError, match=r"tried on a tiny graph.*reach=0"):
        outcomes(WritesInPlace, make_graph(), 3, "random", 1, ", reach=1")


def test_rows_without_meaning_make_no_nan():
    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([GCNConv(IN, 8), GCNConv(8, 8), GCNConv(8, OUT)])

        def forward(self, x, edge_index):
            for conv in self.convs:
                x = conv(x / x.norm(dim=1, keepdim=True), edge_index)
            return x

    # A dense graph: all other rows are one hop away, and the second hop is empty.
    graph = make_graph(24)
    ends = torch.cartesian_prod(torch.arange(24), torch.arange(24)).t()
    graph = replace(graph, edge_index=ends[:, ends[0] != ends[1]])
    single, ranks = outcomes(Unit, graph, 3, "random", 3, ", reach=2")
    check_equal(single, ranks)


def test_bad_settings_are_refused_at_once():
    for text, told in [
        ("edges=sorce", "Did you mean 'source'"),
        ("reach=-1", "0 or more hops"),
        ("link_mbit=0", "above 0"),
    ]:
        with pytest.raises(ConfigError, match=told):
            parse_strategy(f"exchange({text})")


def test_memories_of_codecs_for_other_edges_are_refused_with_the_settings_to_take():
    text = "exchange(codec=error_feedback(codec=topk), schedule=constant(value=4.0), partitioner=random, edges={})"

    def on_rank(transport):
        worker = start(text.format("cover, reach=0"), make_graph(90), sage(), transport, seed=5)
        of_earlier_version = {"num_ranks": 3, "next_epoch": 4}
        with pytest.raises(CheckpointError, match="earlier version had edges=destination, reach=0"):
            worker.load_state(of_earlier_version)
        worker.load_state(worker.state())

    run_ranks(3, on_rank)


def choices(text: str, build, num_ranks: int = 4) -> set[str]:
    """What the ranks chose, for a graph whose parts have most of their neighbours elsewhere."""
    graph = make_graph(60)
    return set(run_ranks(num_ranks, lambda transport: start(text, graph, build(), transport).choice))


def deep() -> GraphSAGE:
    return GraphSAGE(IN, 8, 4, OUT).double()


def test_a_second_hop_is_chosen_where_the_link_is_slow_and_memory_allows(monkeypatch):
    slow = "exchange(partitioner=random, link_mbit=0.001)"
    assert choices(slow, deep) == {"edges=cover, reach=2"}
    monkeypatch.setattr(reach_choice, "memory_limit", lambda communicator: 20_000)
    assert choices(slow, deep) == {"edges=cover, reach=1"}


def test_a_hop_that_could_not_win_is_not_looked_for(monkeypatch):
    """With so fast a link that only the first hop pays, the edges into halo rows are never asked for."""
    asked = []
    monkeypatch.setattr(
        reach_choice, "with_reach", lambda placement, reach: asked.append(reach) or with_reach(placement, reach)
    )
    # Layers far wider than the features: a hop more computes far more than the first.
    wide = lambda: GraphSAGE(IN, 64, 4, OUT).double()  # noqa: E731
    assert choices("exchange(partitioner=random, link_mbit=20000)", wide) == {"edges=cover, reach=1"}
    assert set(asked) == {1}


def test_a_row_of_an_inner_hop_counts_the_layers_that_it_runs_through():
    """With two hops, rows of the first run through two layers, and rows of the second through one."""
    counted = {}

    def on_rank(transport):
        placed = place("exchange(partitioner=random, edges=destination)", make_graph(60), model := deep(), transport)
        traces = Traces(model)
        costs = reach_choice.Costs(1e12, None, traces, lambda: placed.trial)
        placements = [with_reach(placed.placement, reach) for reach in range(3)]
        flops = [traces.of(each).flops for each in placements]
        seconds = reach_choice._seconds(placements[2], flops, costs)
        first, second = (hop.num_rows for hop in placements[2].hops)
        one_layer, two_layers = flops[1] - flops[0], flops[2] - flops[1]
        counted[transport.rank] = (first - placed.shard.num_rows) * two_layers + (second - first) * one_layer
        return seconds

    found = run_ranks(4, on_rank)
    expected = max(counted.values()) / reach_choice.FLOPS_PER_SECOND
    assert found == pytest.approx([expected] * 4, rel=1e-3)
