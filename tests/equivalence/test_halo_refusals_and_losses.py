"""What ranks cannot share is refused by name, and losses of several terms come out as on one machine."""

import copy

import pytest
import torch
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph
from tests.placing import place, start
from torch import nn
from torch_geometric.nn import (
    GCN,
    ARMAConv,
    ChebConv,
)
from torch_geometric.nn import norm as pyg

from laconic.comm.transport import run_ranks
from laconic.errors import ConfigError, UnsupportedModelError


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ChebConv(IN, OUT, K=3), "ChebConv, which several ranks cannot share"),
        (lambda: ARMAConv(IN, OUT), "ARMAConv, which several ranks cannot share"),
        (lambda: Stack(GCN(IN, 8, 1), nn.SyncBatchNorm(8)), "layers.1 is a SyncBatchNorm"),
        (lambda: Stack(GCN(IN, 8, 1), pyg.GraphSizeNorm()), "layers.1 is a GraphSizeNorm"),
    ],
)
def test_layers_that_would_be_wrong_on_several_ranks_are_refused_by_name(build, words):
    with pytest.raises(UnsupportedModelError, match=words):
        place("exchange", make_graph(), build().double()).check()


def test_other_edges_than_the_shards_own_are_refused():
    model = GCN(IN, 8, 2, OUT).double()
    worker = start("exchange", make_graph(), model)
    with pytest.raises(UnsupportedModelError, match="an edge_index other than the graph's own"):
        model(worker.shard.x, worker.shard.edge_index.clone())


def test_gradients_of_several_backward_passes_add_up():
    graph = make_graph()

    def run(transport):
        model = GCN(IN, 8, 2, OUT).double()
        worker = start("exchange", graph, model, transport)
        shard, found = worker.shard, []
        for times in (1, 2):
            model.zero_grad()
            for _ in range(times):
                worker.share_loss(model(shard.x, shard.edge_index).square().sum()).backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
        return found

    for once, twice in run_ranks(2, run):
        for gradient, doubled in zip(once, twice, strict=True):
            torch.testing.assert_close(doubled, 2 * gradient)


def gradients_of(loss_of, num_ranks: int) -> list[list[torch.Tensor]]:
    """The gradients that `loss_of(worker, model, shard)` leaves on each rank."""
    torch.manual_seed(0)
    model = GCN(IN, 8, 2, OUT).double()
    copies = [copy.deepcopy(model) for _ in range(num_ranks)]

    def run(transport):
        mine = copies[transport.rank]
        worker = start("exchange", make_graph(), mine, transport)
        loss_of(worker, mine, worker.shard).backward()
        return [parameter.grad for parameter in mine.parameters()]

    return run_ranks(num_ranks, run)


def shared_square(worker, model, shard):
    return worker.share_loss(model(shard.x, shard.edge_index).square().sum())


def penalty(model):
    return sum(parameter.square().sum() for parameter in model.parameters())


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda worker, model, shard: shared_square(worker, model, shard) + 0.1 * penalty(model),
        lambda worker, model, shard: 0.1 * penalty(model) + shared_square(worker, model, shard),
        lambda worker, model, shard: shared_square(worker, model, shard) + 0.3 * shared_square(worker, model, shard),
    ],
    ids=["a penalty after", "a penalty before", "two shared losses"],
)
def test_what_is_added_to_a_shared_loss_counts_once(loss_of):
    (expected,) = gradients_of(loss_of, 1)
    for rank in gradients_of(loss_of, 3):
        for gradient, alone in zip(rank, expected, strict=True):
            torch.testing.assert_close(gradient, alone, rtol=1e-10, atol=1e-10)


def test_a_head_outside_of_the_attached_model_is_refused():
    head = nn.Linear(OUT, OUT).double()

    def loss_of(worker, model, shard):
        return worker.share_loss(head(model(shard.x, shard.edge_index)).square().sum())

    with pytest.raises(ConfigError, match="not in the attached model"):
        gradients_of(loss_of, 2)


class Mixing(nn.Module):
    """Subtracts the mean over rows, where no one sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCN(IN, 8, 1, OUT)

    def forward(self, x, edge_index):
        out = self.conv(x, edge_index)
        return out - out.mean(0)


class MixingInTraining(Mixing):
    def forward(self, x, edge_index):
        out = self.conv(x, edge_index)
        return out - out.mean(0) if self.training else out


class Drawing(Mixing):
    """Adds noise in training, of torch's own generator."""

    def forward(self, x, edge_index):
        return self.conv(x + torch.rand_like(x) if self.training else x, edge_index)


class OwnNorm(pyg.GraphNorm):
    """A norm of the user's own, on top of one that is known."""


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Mixing, "Mixing gives other outputs in evaluation when two ranks share a tiny graph"),
        (MixingInTraining, "MixingInTraining gives other outputs in training when two ranks share a tiny graph"),
        (Drawing, "Drawing gives other outputs each time it is called in training: it draws random numbers itself"),
        (lambda: Stack(GCN(IN, 8, 1), OwnNorm(8)), "layers.1 is a OwnNorm"),
        (lambda: Stack(GCN(IN, 8, 1), pyg.BatchNorm(8, allow_single_element=True)), "layers.1 is a BatchNorm"),
    ],
)
def test_what_mixes_the_rows_of_one_rank_is_refused(build, words):
    with pytest.raises(UnsupportedModelError, match=words):
        place("exchange", make_graph(), build().double()).check()


def test_keyed_dropout_is_no_randomness_of_the_models_own():
    placed = place("exchange", make_graph(), GCN(IN, 8, 2, OUT, dropout=0.5, norm="BatchNorm").double())
    before = torch.get_rng_state()
    placed.check()
    assert torch.equal(torch.get_rng_state(), before)


def test_features_that_are_changed_in_place_are_refused_once_ranks_keep_what_was_made_of_them():
    graph = make_graph()

    def run(transport):
        with transport:
            model = GCN(IN, 8, 2, OUT).double()
            shard = start("exchange(reach=0)", graph, model, transport).shard
            model(shard.x, shard.edge_index)
            if transport.rank == 1:
                shard.x.mul_(2.0)
            model(shard.x, shard.edge_index)

    with pytest.raises(ConfigError, match="features were changed in place after the first step"):
        run_ranks(2, run)
