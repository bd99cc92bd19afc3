"""A step runs on the shard that its epoch gives: context rows lie behind the owned ones, and outputs are of these."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCN

import laconic
from laconic.errors import ConfigError, UnsupportedModelError

NUM_RANKS = 2
EXACT = {"rtol": 0, "atol": 1e-10}
# Each with rows of other ranks behind a rank's own.
STRATEGIES = {
    "sums": "gradient_only(keep=sums, turns=1, partitioner=random)",
    "sums in groups": "gradient_only(keep=sums, turns=3, partitioner=random)",
    "sums over two hops": "gradient_only(keep=sums, reach=2, partitioner=random)",
    "rows over two hops": "gradient_only(keep=rows, reach=2, partitioner=random)",
    "grappa": "grappa(variable=1, chunks=4, repartition_every=1)",
}
# Ranks are threads, which share the generator that first weights are drawn from.
MODEL = GCN(8, 6, 3, 4, dropout=0.5).double()


def trained(graph, strategy, communicator):
    """A session after two epochs, and the shards: the one that was placed, then those of the epochs."""
    session = laconic.join(graph, strategy=strategy, communicator=communicator)
    model = session.attach(copy.deepcopy(MODEL))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    shards = [session.shard]
    for _, shard in session.epochs(2):
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shards.append(shard)
    return session, shards


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_step_runs_on_the_rows_of_the_shard_that_the_epoch_gives(graph, on_ranks, strategy):
    def work(communicator):
        session, (placed, *_, shard) = trained(graph, strategy, communicator)
        seen = []
        session.model.convs[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
        out = session.model(shard.x, shard.edge_index)
        # Groups that are computed ahead of the step come first.
        assert seen[-1][0] is shard.x
        assert seen[-1][1] is shard.edge_index
        assert shard.num_rows > shard.num_owned == placed.num_rows
        assert len(out) == len(shard.y) == len(shard.train_mask) == shard.num_owned
        assert torch.equal(shard.x[: shard.num_owned], placed.x)
        assert torch.equal(shard.node_ids[: shard.num_owned], placed.node_ids)

    on_ranks(NUM_RANKS, work)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_evaluation_on_the_shard_of_an_epoch_is_exact(graph, on_ranks, strategy):
    def work(communicator):
        session, (placed, *_, shard) = trained(graph, strategy, communicator)
        model = session.model.eval()
        with torch.no_grad():
            outputs = [model(held.x, held.edge_index) for held in (shard, placed)]
            outputs.append(model(2 * shard.x, shard.edge_index))
        plain = GCN(8, 6, 3, 4, dropout=0.5).double()
        plain.load_state_dict(model.state_dict())
        return shard, outputs, plain.eval(), session.predict(), session.embeddings("convs.1")

    ranks = on_ranks(NUM_RANKS, work)
    plain = ranks[0][2]
    hidden = []
    plain.convs[1].register_forward_hook(lambda module, inputs, output: hidden.append(output))
    with torch.no_grad():
        whole, doubled = plain(graph.x, graph.edge_index), plain(2 * graph.x, graph.edge_index)
    for shard, outputs, *_ in ranks:
        own = shard.node_ids[: shard.num_owned]
        for found, expected in zip(outputs, (whole, whole, doubled), strict=True):
            torch.testing.assert_close(found, expected[own], **EXACT)
    *_, predictions, vectors = ranks[0]
    np.testing.assert_allclose(predictions.probabilities, whole.softmax(1).float().numpy(), rtol=0, atol=1e-7)
    np.testing.assert_allclose(vectors.vectors, hidden[0].numpy(), **EXACT)


@pytest.mark.parametrize("strategy", [STRATEGIES["sums in groups"], STRATEGIES["grappa"]])
def test_a_step_on_another_shard_than_the_epochs_is_refused_on_all_ranks(graph, on_ranks, strategy):
    def work(communicator):
        session, (placed, *_, shard) = trained(graph, strategy, communicator)
        for x, edges in ((placed.x, placed.edge_index), (2 * shard.x, shard.edge_index)):
            with pytest.raises(UnsupportedModelError, match=r"for epoch, shard in session.epochs\(100\)"):
                session.model(x, edges)

    on_ranks(NUM_RANKS, work)


@pytest.mark.parametrize("strategy", [STRATEGIES["sums in groups"], STRATEGIES["grappa"]])
def test_a_shard_that_was_changed_in_place_is_refused_in_training_and_evaluation(graph, on_ranks, strategy):
    def work(communicator):
        session, (*_, shard) = trained(graph, strategy, communicator)
        shard.x.mul_(2)
        for mode in (True, False):
            with pytest.raises(ConfigError, match="changed in place after other ranks had taken copies"):
                session.model.train(mode)(shard.x, shard.edge_index)

    on_ranks(NUM_RANKS, work)


@pytest.mark.parametrize("strategy", [STRATEGIES["grappa"], "grappa"])
def test_evaluation_on_a_copy_of_the_epochs_edges_is_not_taken_for_another_graph(strategy, graph, on_ranks):
    def work(communicator):
        session, (*_, shard) = trained(graph, strategy, communicator)
        with pytest.raises(UnsupportedModelError, match=r"Call the model with shard.x and shard.edge_index themselves"):
            session.model.eval()(shard.x.clone(), shard.edge_index.clone())

    on_ranks(NUM_RANKS, work)


@pytest.mark.parametrize("strategy", ["gradient_only(keep=sums)", "exchange(reach=1)"])
def test_features_changed_in_place_between_two_epochs_are_refused(strategy, graph, on_ranks):
    def work(communicator):
        session, (*_, shard) = trained(graph, strategy, communicator)
        shard.x[0] += 1

        def go_on():
            now = session.start_epoch(10)
            session.model.train()(now.x, now.edge_index)

        with pytest.raises(ConfigError, match="changed in place after other ranks had taken copies"):
            go_on()

    on_ranks(NUM_RANKS, work)


def test_batches_on_cached_sums_are_refused(graph, on_ranks):
    def work(communicator):
        session, (*_, shard) = trained(graph, "gradient_only(keep=sums)", communicator)
        with pytest.raises(ConfigError, match="Use keep=rows"):
            session.worker.using_batch(shard)

    on_ranks(NUM_RANKS, work)
