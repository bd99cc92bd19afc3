"""What `grappa` refuses, and with which words; what it warns of."""

import logging
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.placing import place, start
from torch_geometric.nn import GAT, GCN, GraphSAGE

import laconic
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.strategies import parse_strategy

REFUSED = {
    "repartition_every=0": "repartition_every should be 1 or more epochs; got 0.",
    "rechunk_every=-1": "rechunk_every should be 0 (never) or more sweeps; got -1.",
    "supply=storge": "Unknown supply 'storge'. Choices: auto, peers, storage. Did you mean 'storage'?",
    "correction=nodes": "Unknown correction 'nodes'. Choices: batch, degree, node, none, sweep. Did you mean 'node'?",
    "combination=self": "Unknown combination 'self'. Choices: ht, mean, self_normalised.",
    "gradients=bf17": "Unknown gradient reduction 'bf17'.",
    "correction=node, shrinkage=2": "shrinkage should be a number from 0 to 1, or auto; got 2.",
    "correction=node, hops=0": "hops should be 1 or more; got 0.",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_settings_that_cannot_be_are_refused_with_what_to_do(settings):
    with pytest.raises(ConfigError) as caught:
        parse_strategy(f"grappa({settings})")
    assert REFUSED[settings] in str(caught.value)


# Each setting beside the others that it once excluded; what has nothing to do then does nothing.
TOGETHER = [
    "correction=sweep, schedule=fixed, variable=1",
    "correction=sweep",
    "rechunk_every=1, schedule=fixed, variable=2",
    "rechunk_every=1",
    "shrinkage=0.5",
]


@pytest.mark.parametrize("settings", TOGETHER)
def test_no_setting_excludes_another(settings):
    parse_strategy(f"grappa({settings})")


REFUSED_ON_RANKS = {
    "chunks=2": "There are 3 ranks, and each needs a chunk at least; chunks is 2.",
    "variable=3": "3 variable chunks are more than there are: of 3 chunks rank 0 owns 1, which leaves 2. Ask for at "
    "most 2, or partition the graph into more parts.",
    "variable=-1": "The number of variable chunks should be 0 or more; got -1.",
    "schedule=cyclical": "Unknown sweep schedule 'cyclical'. Choices: affinity, cyclic, fixed, random. Did you mean "
    "'cyclic'?",
}


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.mark.parametrize("settings", REFUSED_ON_RANKS)
def test_what_does_not_fit_the_ranks_is_refused_by_all_of_them(settings, graph, on_ranks):
    def refused(communicator):
        with pytest.raises(ConfigError) as caught:
            place(f"grappa({settings})", graph, ranks=communicator)
        return str(caught.value)

    assert on_ranks(3, refused) == [REFUSED_ON_RANKS[settings]] * 3


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda: GAT(8, 8, 2, 4),
            "convs.0 is a GATConv, whose edges correction=sweep cannot weigh: attention",
        ),
        (lambda: GraphSAGE(8, 8, 2, 4, aggr="max"), "convs.0 is a SAGEConv, .* a maximum has no weights"),
    ],
)
def test_convolutions_without_fixed_weights_are_refused_for_a_sweep(build, reason, graph, on_ranks):
    model = build().double()

    def refused(communicator):
        placed = place("grappa(variable=1, correction=sweep)", graph, model, communicator)
        with pytest.raises(UnsupportedModelError, match=reason) as caught:
            placed.check()
        return str(caught.value)

    for message in on_ranks(2, refused):
        assert message.endswith("Use correction=node or batch, or the strategy gradient_only.")


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
        text = "grappa(partitioner=random, chunks=8, correction=node, hops=8)"
        worker = start(text, graph, models[communicator.rank], communicator)
        with pytest.raises(ConfigError) as caught:
            worker.start_epoch(1)
        return str(caught.value)

    messages = on_ranks(2, refused)
    assert messages[0] == messages[1]
    assert messages[0].startswith("All 6 training nodes have coverage 0 on all 2 ranks")


def opaque(out, y, reduction):
    return F.cross_entropy(out, y)


def test_a_loss_that_is_not_per_node_is_refused_where_nodes_are_weighted(graph, on_ranks):
    models = [GCN(8, 8, 2, 4).double() for _ in range(2)]

    def refused(communicator):
        strategy = "grappa(variable=1, correction=node)"
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
            "Use the strategy gradient_only, or let chunks change (variable, schedule).",
        ),
        ("variable=1, repartition_every=5", 15, None),
        ("variable=3", 1, None),
    ],
)
def test_pairs_of_chunks_that_are_never_seen_are_told_once(settings, epochs, words, graph, on_ranks, caplog):
    models = [GCN(8, 8, 2, 4).double() for _ in range(4)]

    def run(communicator):
        start(f"grappa({settings})", graph, models[communicator.rank], communicator, num_epochs=epochs)

    with caplog.at_level(logging.WARNING):
        on_ranks(4, run)
    assert [record.getMessage() for record in caplog.records] == ([] if words is None else [words])


def test_own_features_are_in_memory_once_and_again_only_beside_those_of_variable_chunks(graph, on_ranks):
    models = [GraphSAGE(8, 8, 2, 4).double() for _ in range(3)]

    def run(communicator):
        own = place("grappa(variable=1, chunks=6)", graph, models[communicator.rank], communicator)
        placed = own.with_features(own.shard.x * 2, lambda x: x * 2)
        shard, worker = placed.shard, placed.start(seed=0)
        worker.start_epoch(1)
        seen = worker.drawn_from.x
        assert torch.equal(seen[: shard.num_rows], own.shard.x * 2)
        assert len(seen) > shard.num_rows
        memory = shard.x.untyped_storage().data_ptr()
        return [chunk.x.untyped_storage().data_ptr() == memory for chunk in worker.sweeper.owned.values()]

    assert on_ranks(3, run) == [[True, True]] * 3


def test_of_a_graph_in_memory_only_the_chunks_that_are_needed_are_cut_out(graph, on_ranks):
    opened = {rank: [] for rank in range(3)}
    models = [GraphSAGE(8, 8, 2, 4).double() for _ in range(3)]

    def run(communicator):
        placed = place("grappa(variable=1)", graph, models[communicator.rank], communicator)
        chunks, numbers = placed.chunks, opened[communicator.rank]
        noting = replace(chunks, open=lambda number: (numbers.append(number), chunks.open(number))[1])
        replace(placed, chunks=noting).start(seed=0)

    on_ranks(3, run)
    assert opened == {0: [0], 1: [1], 2: [2]}
