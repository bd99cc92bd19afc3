"""What `gradient_only` refuses, and with which words; what it warns of."""

import logging
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.equivalence.isolated_runs import OwnConv
from torch_geometric.nn import GAT, GCN, GraphSAGE, LEConv, ResGatedGraphConv

import laconic
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.isolated.reaching import check_keeps_sums
from laconic.strategies import parse_strategy

REFUSED = {
    "repartition_every=0": "repartition_every should be 1 or more epochs; got 0.",
    "rechunk_every=-1": "rechunk_every should be 0 (never) or more sweeps; got -1.",
    "sync_every=0": "sync_every should be 1 or more steps; got 0.",
    "remote=1.5": "remote should be a share from 0 to 1; got 1.5.",
    "normalise=hold": "Unknown normalise 'hold'. Choices: auto, held, whole. Did you mean 'held'?",
    "supply=storge": "Unknown supply 'storge'. Choices: auto, peers, storage. Did you mean 'storage'?",
    "correction=nodes": "Unknown correction 'nodes'. Choices: batch, node, none, sweep. Did you mean 'node'?",
    "combination=self": "Unknown combination 'self'. Choices: ht, mean, self_normalised.",
    "gradients=bf17": "Unknown gradient reduction 'bf17'.",
    "variable=1": "With remembered neighbours none are missing: there is nothing to correct, and variable chunks are "
    "not needed. Leave variable and correction out, or set remember=False.",
    "correction=node": "Leave variable and correction out, or set remember=False.",
    "remember=False, correction=node, normalise=whole": "correction=node and normalise=whole correct the same thing "
    "twice, which is wrong for every node by another factor. Leave normalise out, or use correction=none.",
    "remember=False, variable=1, correction=sweep, normalise=held": "exact only over the degrees of the whole graph. "
    "Leave normalise out.",
    "remember=False, correction=sweep": "correction=sweep needs variable chunks that change. Set variable=1 or more.",
    "remember=False, shrinkage=0.5": "shrinkage draws coverage weights towards 1, and correction=none has none. Use "
    "correction=node or batch, or leave shrinkage out.",
    "remember=False, correction=node, shrinkage=2": "shrinkage should be a number from 0 to 1, or auto; got 2.",
    "remember=False, correction=node, hops=0": "hops should be 1 or more; got 0.",
    "remember=False, remote=0.5": "remote draws from remembered neighbours, and remember is False. Leave one of them "
    "out.",
    "keep=sum": "Unknown keep 'sum'. Choices: auto, rows, sums. Did you mean 'sums'?",
    "remember=False, keep=sums": "keep=sums is for remembered neighbours, and remember is False.",
    "keep=rows, turns=2": "turns=2 is for neighbours' rows that are computed here, which they are with keep=sums only.",
    "turns=0": "turns should be 1 (no turns) or more, or be left out; got 0.",
    "remember=False, reach=2": "reach=2 is for neighbours' rows that are computed here",
    "reach=0": "reach should be 1 hop or more, or be left out; got 0.",
    "gradual=never": "gradual should be True or False, or be left out; got never.",
    "reach=auto": "reach should be 1 hop or more, or be left out; got auto.",
    "reach=1.5": "reach should be 1 hop or more, or be left out; got 1.5.",
    "remember=False, codec=cast": "codec=cast is for remembered neighbours, and remember is False.",
    "codec=quantise": "Unknown codec 'quantise'.",
    "codec=error_feedback": "codec error_feedback remembers earlier messages. A run that is taken up makes its last "
    "refresh anew, without those before it, and would remember other rows. Use quantize, cast, or another codec "
    "without a memory.",
    "sync_every=4, gradients=bf16": "With sync_every=4 parameters travel, not gradients: gradients=bf16 has no effect.",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_settings_that_cannot_be_are_refused_with_what_to_do(settings):
    with pytest.raises(ConfigError) as caught:
        parse_strategy(f"gradient_only({settings})")
    assert REFUSED[settings] in str(caught.value)


def test_an_unknown_setting_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="repartition_every"):
        parse_strategy("gradient_only(repartition=5)")


REFUSED_ON_RANKS = {
    "chunks=2": "There are 3 ranks, and each needs a chunk at least; chunks is 2.",
    "remember=False, variable=3": "3 variable chunks are more than there are: of 3 chunks rank 0 owns 1, which leaves "
    "2. Ask for at most 2, or partition the graph into more parts.",
    "remember=False, variable=-1": "The number of variable chunks should be 0 or more; got -1.",
    "remember=False, schedule=cyclical": "Unknown sweep schedule 'cyclical'. Choices: affinity, cyclic, fixed, random. "
    "Did you mean 'cyclic'?",
}


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.mark.parametrize("settings", REFUSED_ON_RANKS)
def test_what_does_not_fit_the_ranks_is_refused_by_all_of_them(settings, graph, on_ranks):
    def refused(communicator):
        with pytest.raises(ConfigError) as caught:
            parse_strategy(f"gradient_only({settings})").place(graph, communicator)
        return str(caught.value)

    assert on_ranks(3, refused) == [REFUSED_ON_RANKS[settings]] * 3


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda: GAT(8, 8, 2, 4),
            "convs.0 is a GATConv, whose edges correction=sweep and normalise=whole cannot weigh: attention",
        ),
        (lambda: GraphSAGE(8, 8, 2, 4, aggr="max"), "convs.0 is a SAGEConv, .* a maximum has no weights"),
    ],
)
def test_convolutions_without_fixed_weights_are_refused_for_a_sweep(build, reason, graph, on_ranks):
    model = build().double()

    def refused(communicator):
        strategy = parse_strategy("gradient_only(remember=False, variable=1, correction=sweep)")
        shard = strategy.place(graph, communicator)
        with pytest.raises(UnsupportedModelError, match=reason) as caught:
            strategy.check(model, shard)
        return str(caught.value)

    for message in on_ranks(2, refused):
        assert message.endswith("Use correction=node or batch, or remember=True.")


def test_all_training_nodes_without_a_neighbour_are_an_error_not_a_step_of_nothing(make_graph, on_ranks):
    """Coverage 0 everywhere: two chunks, every edge between them."""
    graph = make_graph(num_nodes=8, dtype=torch.float64)
    rows = torch.arange(8)
    graph = laconic.Graph(
        **{name: getattr(graph, name) for name in ("x", "y", "num_classes", "name")},
        edge_index=torch.stack([rows, (rows + 1) % 8]),
        train_mask=rows < 6,
        val_mask=rows == 6,
        test_mask=rows == 7,
    )
    models = [GCN(8, 8, 2, 4).double() for _ in range(2)]

    def refused(communicator):
        strategy = parse_strategy(
            "gradient_only(remember=False, partitioner=random, chunks=8, correction=node, hops=8)"
        )
        shard = strategy.place(graph, communicator)
        strategy.attach(models[communicator.rank], shard, seed=0)
        with pytest.raises(ConfigError) as caught:
            strategy.start_epoch(1)
        return str(caught.value)

    messages = on_ranks(2, refused)
    assert messages[0] == messages[1]
    assert messages[0].startswith("All 6 training nodes have coverage 0 on all 2 ranks")


def opaque(out, y, reduction):
    return F.cross_entropy(out, y)


def test_a_loss_that_is_not_per_node_is_refused_where_nodes_are_weighted(graph, on_ranks):
    models = [GCN(8, 8, 2, 4).double() for _ in range(2)]

    def refused(communicator):
        strategy = "gradient_only(remember=False, variable=1, correction=node)"
        session = laconic.join(graph, strategy=strategy, communicator=communicator)
        model = session.attach(models[communicator.rank])
        for _, shard in session.epochs(1):
            with pytest.raises(ConfigError) as caught:
                session.loss(opaque, model(shard.x, shard.edge_index), shard)
        return str(caught.value)

    for message in on_ranks(2, refused):
        assert "needs one number for each of" in message
        assert "nodes from opaque with reduction='none'; it gave a tensor of shape ()" in message
        assert message.endswith("Use such a loss, or correction=none.")


@pytest.mark.parametrize(
    ("settings", "epochs", "words"),
    [
        (
            "variable=1, repartition_every=5",
            10,
            "Edges between these chunks are never seen in training: 3 to 0, 0 to 1, 1 to 2, 2 to 3. A whole sweep "
            "takes 15 epochs: train longer, repartition more often or hold more variable chunks.",
        ),
        (
            "variable=1, schedule=fixed",
            100,
            "Edges between these chunks are never seen in training: 2 to 0, 3 to 0, 0 to 1, 3 to 1, 0 to 2 and 3 more. "
            "Set remember=True, or let chunks change (variable, schedule).",
        ),
        ("variable=1, repartition_every=5", 15, None),
        ("variable=3", 1, None),
    ],
)
def test_pairs_of_chunks_that_are_never_seen_are_told_once(settings, epochs, words, graph, on_ranks, caplog):
    def expect(communicator):
        strategy = parse_strategy(f"gradient_only(remember=False, {settings})")
        strategy.place(graph, communicator)
        strategy.expect_epochs(epochs)

    with caplog.at_level(logging.WARNING):
        on_ranks(4, expect)
    assert [record.getMessage() for record in caplog.records] == ([] if words is None else [words])


def test_remembered_neighbours_leave_nothing_unseen(graph, on_ranks, caplog):
    def expect(communicator):
        strategy = parse_strategy("gradient_only")
        strategy.place(graph, communicator)
        strategy.expect_epochs(1)

    with caplog.at_level(logging.WARNING):
        on_ranks(3, expect)
    assert not caplog.records


@pytest.mark.parametrize(
    ("conv", "settings", "num_ranks", "is_told"),
    [
        (lambda: LEConv(8, 8), "", 2, True),
        (lambda: ResGatedGraphConv(8, 8), "", 2, True),
        (lambda: LEConv(8, 8), "", 1, False),
        (lambda: LEConv(8, 8), "remember=False", 2, False),
        (lambda: GraphSAGE(8, 8, 1), "", 2, False),
        # Without a kernel, and hands on what it was given.
        (lambda: OwnConv(8, 8), "", 2, False),
    ],
)
def test_a_convolution_that_is_remembered_behind_its_weights_is_told_once(
    conv, settings, num_ranks, is_told, graph, on_ranks, caplog
):
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = conv(), conv()

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    models = [Twice().double() for _ in range(num_ranks)]

    def run(communicator):
        strategy, model = parse_strategy(f"gradient_only({settings})"), models[communicator.rank]
        strategy.attach(model, strategy.place(graph, communicator), seed=0)
        for epoch in (1, 2):
            shard = strategy.start_epoch(epoch)
            strategy.share_loss(model(shard.x, shard.edge_index).square().sum()).backward()

    with caplog.at_level(logging.WARNING):
        on_ranks(num_ranks, run)
    told = [record.getMessage() for record in caplog.records if "weights of the last refresh" in record.getMessage()]
    assert len(told) == is_told
    assert all(text.startswith(("LEConv has no kernel", "ResGatedGraphConv has no kernel")) for text in told)


def test_own_features_are_in_memory_once_and_again_only_beside_those_of_variable_chunks(graph, on_ranks):
    models = [GraphSAGE(8, 8, 2, 4).double() for _ in range(3)]

    def run(communicator):
        strategy = parse_strategy("gradient_only(remember=False, variable=1, chunks=6)")
        own = strategy.place(graph, communicator)
        shard = strategy.with_features(own.x * 2, lambda x: x * 2)
        strategy.attach(models[communicator.rank], shard, seed=0)
        strategy.start_epoch(1)
        seen = strategy._grounds.shard.x
        assert torch.equal(seen[: shard.num_rows], own.x * 2)
        assert len(seen) > shard.num_rows
        memory = shard.x.untyped_storage().data_ptr()
        return [chunk.x.untyped_storage().data_ptr() == memory for chunk in strategy._grounds.sweeper.owned.values()]

    assert on_ranks(3, run) == [[True, True]] * 3


def test_of_a_graph_in_memory_only_the_chunks_that_are_needed_are_cut_out(graph, on_ranks):
    opened = {rank: [] for rank in range(3)}
    models = [GraphSAGE(8, 8, 2, 4).double() for _ in range(3)]

    def run(communicator):
        strategy = parse_strategy("gradient_only(remember=False, variable=1)")
        shard = strategy.place(graph, communicator)
        chunks, numbers = strategy._chunks, opened[communicator.rank]
        strategy._chunks = replace(chunks, open=lambda number: (numbers.append(number), chunks.open(number))[1])
        strategy.attach(models[communicator.rank], shard, seed=0)

    on_ranks(3, run)
    assert opened == {0: [0], 1: [1], 2: [2]}


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

    def run(communicator):
        strategy = parse_strategy(spec)
        shard = strategy.place(graph, communicator)
        assert not strategy.draws_batches
        with pytest.raises(UnsupportedModelError, match="attention decides its weights"):
            strategy.check(GAT(graph.num_features, 8, 2, graph.num_classes), shard)

    on_ranks(2, run)
    assert parse_strategy("gradient_only").draws_batches
