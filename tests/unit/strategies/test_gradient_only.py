"""What `gradient_only` refuses, and with which words; what it warns of."""

import logging
from dataclasses import fields, replace

import pytest
import torch
from tests.equivalence.isolated_runs import OwnConv
from tests.placing import place, start
from torch_geometric.nn import GAT, GCN, GraphSAGE, LEConv, ResGatedGraphConv

from laconic.cached.recomputing import check_keeps_sums
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.strategies import parse_strategy
from laconic.strategies.gradient_only import GradientOnly

REFUSED = {
    "refresh_every=0": "refresh_every should be 1 or more epochs; got 0.",
    "link_mbit=0": "gradient_only: link_mbit should be above 0, such as 1000; got 0.",
    "remote=1.5": "remote should be a share from 0 to 1; got 1.5.",
    "gradients=bf17": "Unknown gradient reduction 'bf17'.",
    "keep=sum": "Unknown keep 'sum'. Choices: auto, rows, sums. Did you mean 'sums'?",
    "turns=0": "turns should be 1 (no turns) or more, or be left out; got 0.",
    "reach=0": "reach should be 1 hop or more, or be left out; got 0.",
    "gradual=never": "gradual should be True or False, or be left out; got never.",
    "reach=auto": "reach should be 1 hop or more, or be left out; got auto.",
    "reach=1.5": "reach should be 1 hop or more, or be left out; got 1.5.",
    "codec=quantise": "Unknown codec 'quantise'.",
    "codec=error_feedback": "codec error_feedback remembers earlier messages. A run that is taken up makes its last "
    "refresh anew, without those before it, and would remember other rows. Use quantize, cast, or another codec "
    "without a memory.",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_settings_that_cannot_be_are_refused_with_what_to_do(settings):
    with pytest.raises(ConfigError) as caught:
        parse_strategy(f"gradient_only({settings})")
    assert REFUSED[settings] in str(caught.value)


def test_an_unknown_setting_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="refresh_every"):
        parse_strategy("gradient_only(refresh=5)")


@pytest.mark.parametrize("settings", ["keep=rows, turns=2", "keep=rows, reach=2", "keep=sums, turns=2, remote=0.5"])
def test_no_setting_excludes_another(settings):
    parse_strategy(f"gradient_only({settings})")


MODEL = GCN(8, 8, 2, 4, norm="batch_norm").double()


def test_norms_over_nodes_are_refused_where_rows_of_others_are_computed(graph, on_ranks):
    def refused(communicator):
        placed = place("gradient_only(keep=rows, reach=2)", graph, MODEL, communicator)
        assert not placed.settings.draws_batches
        with pytest.raises(UnsupportedModelError, match=r"norms\.0.*would count the rows of other ranks"):
            placed.check()

    on_ranks(2, refused)


def test_it_has_ten_settings_at_most():
    assert len([field for field in fields(GradientOnly) if field.init]) <= 10


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


def test_historical_neighbours_leave_nothing_unseen(graph, on_ranks, caplog):
    models = [GCN(8, 8, 2, 4).double() for _ in range(3)]

    def run(communicator):
        start("gradient_only", graph, models[communicator.rank], communicator, num_epochs=1)

    with caplog.at_level(logging.WARNING):
        on_ranks(3, run)
    assert not caplog.records


@pytest.mark.parametrize(
    ("conv", "strategy", "num_ranks", "is_told"),
    [
        (lambda: LEConv(8, 8), "gradient_only", 2, True),
        (lambda: ResGatedGraphConv(8, 8), "gradient_only", 2, True),
        (lambda: LEConv(8, 8), "gradient_only", 1, False),
        (lambda: LEConv(8, 8), "grappa", 2, False),
        (lambda: GraphSAGE(8, 8, 1), "gradient_only", 2, False),
        # Without a kernel, and hands on what it was given.
        (lambda: OwnConv(8, 8), "gradient_only", 2, False),
    ],
)
def test_a_convolution_that_is_cached_behind_its_weights_is_told_once(
    conv, strategy, num_ranks, is_told, graph, on_ranks, caplog
):
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = conv(), conv()

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    models = [Twice().double() for _ in range(num_ranks)]

    def run(communicator):
        model = models[communicator.rank]
        worker = start(strategy, graph, model, communicator)
        for epoch in (1, 2):
            shard = worker.start_epoch(epoch)
            worker.share_loss(model(shard.x, shard.edge_index).square().sum()).backward()

    with caplog.at_level(logging.WARNING):
        on_ranks(num_ranks, run)
    told = [record.getMessage() for record in caplog.records if "weights of the last refresh" in record.getMessage()]
    assert len(told) == is_told
    assert all(text.startswith(("LEConv has no kernel", "ResGatedGraphConv has no kernel")) for text in told)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: GAT(4, 8, 2, 3),
            "cannot compute halo rows: convs.0 is a GATConv, and attention decides its weights.",
        ),
        (lambda: GraphSAGE(4, 8, 2, 3, aggr="max"), "a maximum has no weights. Use keep=rows, or leave them out."),
        (lambda: GCN(4, 8, 2, 3, norm="batch_norm"), "its statistics would count halo rows as well. Use keep=rows"),
    ],
)
def test_models_whose_halo_rows_cannot_be_computed_are_refused(model, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        check_keeps_sums(model())


@pytest.mark.parametrize("spec", ["gradient_only(keep=sums)", "gradient_only(turns=2)", "gradient_only(reach=2)"])
def test_settings_of_sums_are_never_left_out_of_account(spec, on_ranks, make_graph):
    """A model or batches that keep rows are refused, where `auto` alone would take rows."""
    graph = make_graph()
    model = GAT(graph.num_features, 8, 2, graph.num_classes)

    def run(communicator):
        placed = place(spec, graph, model, communicator)
        assert not placed.settings.draws_batches
        with pytest.raises(UnsupportedModelError, match="attention decides its weights"):
            placed.check()

    on_ranks(2, run)
    assert parse_strategy("gradient_only").draws_batches


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [("link_mbit=1e9", True), ("link_mbit=0.001", False), ("keep=rows, link_mbit=1e9", False)],
)
def test_the_log_says_where_exact_exchange_is_the_faster(settings, is_told, graph, on_ranks, caplog):
    def begin(communicator):
        start(f"gradient_only({settings})", graph, GraphSAGE(graph.num_features, 16, 3, 4).double(), communicator)

    with caplog.at_level(logging.INFO):
        on_ranks(2, begin)
    told = [record.getMessage() for record in caplog.records if "exchange" in record.getMessage()]
    assert len(told) == is_told
    assert not told or told[0].startswith("The strategy exchange, which is exact, should be faster here: at 1e+09 mbit")


def test_the_exchange_that_is_compared_has_its_edges_placed_by_a_cover(graph, on_ranks, caplog):
    """Where every edge between ranks ends in one node of each rank, one partial sum travels for many rows."""
    ends = torch.arange(graph.num_nodes)
    star = replace(graph, edge_index=torch.stack([ends, torch.zeros_like(ends)]), edge_weight=None)
    seconds = {}

    def begin(communicator, link_mbit):
        model = GraphSAGE(graph.num_features, 16, 3, 4).double()
        start(f"gradient_only(partitioner=hash, link_mbit={link_mbit})", star, model, communicator)

    for link_mbit in (1e9, 1e8):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            on_ranks(2, lambda communicator, link_mbit=link_mbit: begin(communicator, link_mbit))
        [told] = [record.getMessage() for record in caplog.records if "should be faster here" in record.getMessage()]
        seconds[link_mbit] = float(told.split("cost it ")[1].split(" s")[0])
    # One sum each way for the only node that others send to: two changing sums of 16 float64, forward and backward.
    assert seconds[1e8] == pytest.approx(10 * seconds[1e9], rel=0.1)
    assert seconds[1e9] <= 2 * 2 * 16 * 8 * 8e-6 / 1e9 * 1.1
