"""A shard may hold rows of other ranks behind its own: losses, scores, predictions and embeddings leave them out.

Each rank here holds all nodes, its own first, computes every row, and gives outputs for its own.
"""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GCN

from laconic.attach import attach
from laconic.attach.aggregator import LocalAggregator
from laconic.comm import Communicator
from laconic.errors import ConfigError
from laconic.gradients.shared import SharedGradients
from laconic.gradients.worker import Worker
from laconic.graph import Shard
from laconic.records import EpochRecord, read_records
from laconic.session import Session
from laconic.strategies.base import Strategy
from laconic.strategies.single import PlacedWhole, Single
from laconic.trainer import Config, RunConfig, TrainingConfig, prepared, start

NUM_RANKS = 2
EXACT = {"rtol": 0, "atol": 1e-10}


@dataclasses.dataclass(frozen=True)
class AllRows(Strategy):
    """Trains on a shard of all nodes, another one in each epoch."""

    def place(self, source, communicator, run):
        ids = torch.arange(source.num_nodes)
        is_own = ids % communicator.num_ranks == communicator.rank
        order = torch.cat([ids[is_own], ids[~is_own]])
        rows = {name: getattr(source, name)[order] for name in ("x", "y", "train_mask", "val_mask", "test_mask")}
        edge_index = order.argsort()[source.edge_index]
        whole = Shard.whole(dataclasses.replace(source, **rows, edge_index=edge_index, node_ids=order))
        own = {name: rows[name][: int(is_own.sum())] for name in ("y", "train_mask", "val_mask", "test_mask")}
        shard = dataclasses.replace(whole, **own, num_owned=int(is_own.sum()))
        return PlacedAllRows(run=run, whole=shard, communicator=communicator, num_train=int(source.train_mask.sum()))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PlacedAllRows(PlacedWhole):
    communicator: Communicator
    num_train: int = 0

    def _start(self, seed):
        attachment = attach(self.run.model, self.whole, seed=seed)
        return AllRowsWorker(attachment, SharedGradients(self.run.model, self.communicator))


class AllRowsWorker(Worker):
    def __init__(self, attachment, gradients):
        super().__init__(attachment)
        self.gradients = gradients

    def start_epoch(self, epoch, step=0):
        shard = dataclasses.replace(self.shard, x=self.shard.x.clone())
        self.attachment.move_to(shard, LocalAggregator(shard, remember_inputs=False))
        return super().start_epoch(epoch, step)

    def share_loss(self, total, weight=None):
        return self.gradients.share(total, weight)


class OwnedOutputs(nn.Module):
    """Gives outputs for the first rows only."""

    def __init__(self, inner, num_owned):
        super().__init__()
        self.inner, self.num_owned = copy.deepcopy(inner), num_owned

    def forward(self, x, edge_index):
        return self.inner(x, edge_index)[: self.num_owned]


# Ranks are threads, which share the generator that first weights are drawn from.
MODEL = GCN(8, 6, 2, 4, dropout=0.5).double()


def trained(graph, strategy, communicator):
    """A session that has trained for two epochs, its losses, and the shards of its epochs."""
    session = Session(graph, strategy, 3, communicator)
    model = session.attach(OwnedOutputs(MODEL, graph.num_nodes // communicator.num_ranks))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, shards = [], [session.shard]
    for _, shard in session.epochs(2):
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        shards.append(shard)
    return session, losses, shards


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.fixture
def expected(graph, on_ranks):
    """Losses, scores, predictions and embeddings of one process."""
    ((session, losses, _),) = on_ranks(1, lambda communicator: trained(graph, Single(), communicator))
    return losses, session.evaluate(), session.predict(), session.embeddings()


def test_a_session_counts_owned_rows_alone(graph, expected, on_ranks):
    def work(communicator):
        session, losses, shards = trained(graph, AllRows(), communicator)
        assert len(set(shards)) == 3
        assert session.shard is shards[-1]
        assert (session.shard.num_rows, session.shard.num_owned) == (60, 30)
        return losses, session.evaluate(), session.predict(), session.embeddings("inner.convs.0")

    losses, scores, predictions, _ = expected
    (_, _, found, vectors), (_, _, nothing, no_vectors) = ranks = on_ranks(NUM_RANKS, work)
    for of_rank in ranks:
        assert of_rank[0] == pytest.approx(losses, rel=0, abs=1e-10)
        assert of_rank[1] == scores
    assert found.node_ids.tolist() == vectors.node_ids.tolist() == list(range(60))
    np.testing.assert_allclose(found.probabilities, predictions.probabilities, rtol=0, atol=1e-7)
    assert len(nothing.node_ids) == len(no_vectors.vectors) == 0


def test_embeddings_are_those_of_owned_rows(graph, expected, on_ranks):
    vectors = expected[-1].vectors
    found, _ = on_ranks(NUM_RANKS, lambda communicator: trained(graph, AllRows(), communicator)[0].embeddings())
    assert found.layer == "input of inner.convs.1"
    np.testing.assert_allclose(found.vectors, vectors, **EXACT)


def test_a_loss_takes_outputs_of_owned_rows(graph, on_ranks):
    def work(communicator):
        session, _, _ = trained(graph, AllRows(), communicator)
        shard = session.shard
        with pytest.raises(ConfigError, match=r"for all 30 owned rows of the shard, got shape \(60, 4\)"):
            session.loss(F.cross_entropy, torch.zeros(60, 4), shard)

    on_ranks(NUM_RANKS, work)


def test_the_trainer_trains_and_scores_on_the_shard_of_the_epoch(graph, on_ranks, tmp_path, monkeypatch):
    def run(communicator, name):
        config = Config(
            training=TrainingConfig(strategy="single", epochs=3, evaluate_every=1, optimizer="sgd", lr=0.5),
            run=RunConfig(folder=str(tmp_path / name), tensorboard=False, threads=1),
        )
        model = OwnedOutputs(MODEL, graph.num_nodes // communicator.num_ranks)
        start(config, graph=graph, model=model, communicator=communicator)
        return {key: value.clone() for key, value in model.state_dict().items()}

    (alone,) = on_ranks(1, lambda communicator: run(communicator, "alone"))
    monkeypatch.setattr(prepared, "parse_strategy", lambda _: AllRows())
    together = on_ranks(NUM_RANKS, lambda communicator: run(communicator, "together"))
    for of_rank in together:
        for name, value in alone.items():
            torch.testing.assert_close(of_rank[name], value, **EXACT, msg=name)
    one, other = (read_records(tmp_path / name / "metrics.jsonl", EpochRecord) for name in ("alone", "together"))
    for mine, theirs in zip(one, other, strict=True):
        assert theirs.loss == pytest.approx(mine.loss, rel=0, abs=1e-10)
        assert (theirs.train, theirs.val, theirs.test) == (mine.train, mine.val, mine.test)
