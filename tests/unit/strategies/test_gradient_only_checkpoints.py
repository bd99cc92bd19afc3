"""gradient_only and activation checkpoints: a convolution that would run again in the backward pass is refused."""

import copy

import pytest
import torch
from tests.placing import start
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCNConv, LEConv

from laconic.attach.forward import run_model
from laconic.errors import ConfigError
from laconic.graph.sampling import NeighbourSampler

STRATEGIES = ["gradient_only", "grappa(variable=1)"]
# Torch warns of the old kind where nothing needs a gradient, as in a refresh.
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")


class Checkpointed(nn.Module):
    """The second convolution, or what lies before it, is run again in the backward pass."""

    def __init__(self, conv, use_reentrant, is_conv_inside=True):
        super().__init__()
        self.first, self.linear, self.second = GCNConv(8, 8), nn.Linear(8, 8), conv(8, 4)
        self.use_reentrant, self.is_conv_inside = use_reentrant, is_conv_inside

    def block(self, h, edge_index):
        h = self.linear(h).tanh()
        return self.second(h, edge_index) if self.is_conv_inside else h

    def forward(self, x, edge_index):
        h = self.first(x, edge_index)
        if self.use_reentrant is None:
            h = self.block(h, edge_index)
        else:
            h = checkpoint(self.block, h, edge_index, use_reentrant=self.use_reentrant)
        return h if self.is_conv_inside else self.second(h, edge_index)


def first_gradients(communicator, spec, model, graph):
    worker = start(spec, graph, model, communicator)
    shard = worker.start_epoch(1)
    worker.share_loss(run_model(model, shard).square().sum()).backward()
    return [parameter.grad for parameter in model.parameters()]


def first_batch(communicator, spec, model, graph):
    worker = start(spec, graph, model, communicator, takes_batches=True)
    rows = worker.start_epoch(1).train_rows
    batch = NeighbourSampler(worker.drawn_from, (3, 3), seed=0).sample(rows.numpy(), epoch=1, step=0)
    with worker.using_batch(batch):
        worker.share_loss(run_model(model, batch)[: len(rows)].square().sum()).backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("conv", [GCNConv, LEConv])
@pytest.mark.parametrize(
    ("spec", "train"), [*((spec, first_gradients) for spec in STRATEGIES), (STRATEGIES[0], first_batch)]
)
def test_a_convolution_inside_a_checkpoint_is_refused_by_all_ranks(
    spec, train, conv, use_reentrant, on_ranks, make_graph
):
    graph, model = make_graph(), Checkpointed(conv, use_reentrant)
    copies = [copy.deepcopy(model) for _ in range(2)]

    def run(communicator):
        with pytest.raises(ConfigError, match=r"Conv was called under torch.utils.checkpoint.*exchange"):
            train(communicator, spec, copies[communicator.rank], graph)
        return True

    assert on_ranks(2, run) == [True, True]


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("spec", STRATEGIES)
def test_what_lies_between_convolutions_may_be_run_again(spec, use_reentrant, on_ranks, make_graph):
    graph = make_graph(dtype=torch.float64)
    model = Checkpointed(GCNConv, use_reentrant, is_conv_inside=False).double()
    copies = [copy.deepcopy(model) for _ in range(4)]
    for plain in copies[2:]:
        plain.use_reentrant = None

    def run(communicator, first):
        return first_gradients(communicator, spec, copies[first + communicator.rank], graph)

    ours, theirs = (on_ranks(2, lambda communicator, f=first: run(communicator, f))[0] for first in (0, 2))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)
