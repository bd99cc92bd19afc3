"""What every strategy promises. A new member is tested here by being in STRATEGIES."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, RGCNConv

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport.local import LocalTransport
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.graph import Graph, Shard
from laconic.specs import format_spec
from laconic.strategies import STRATEGIES, parse_strategy
from laconic.strategies.base import Strategy

# Strategies whose gradients, on one rank at least, are those of one machine, up to rounding.
EXACT = ["single", "exchange", "gradient_only", "full_graph", "grappa"]
# Those that run in one process without other ranks.
LOCAL = ["single", "exchange", "gradient_only", "full_graph", "grappa"]

BUILDERS = {
    "gcn": lambda: GCN(8, 16, 2, 4),
    "sage": lambda: GraphSAGE(8, 16, 3, 4, norm="batch_norm"),
    "gin": lambda: GIN(8, 16, 2, 4, jk="cat"),
    "gat": lambda: GAT(8, 16, 2, 4, heads=2, residual=True),
}


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


def alone(name: str, graph: Graph) -> tuple[Strategy, Shard]:
    """A strategy on one rank. On several: tests/equivalence/test_halo_equals_single.py."""
    strategy = parse_strategy(name)
    return strategy, strategy.place(graph, Communicator(LocalTransport(), Ledger(0)))


def gradients(model: nn.Module, shard: Shard, strategy: Strategy | None) -> dict[str, torch.Tensor]:
    model.train()
    logits = model(shard.x, shard.edge_index)
    rows = shard.train_rows
    loss = F.cross_entropy(logits[rows], shard.y[rows], reduction="sum") / len(rows)
    (loss if strategy is None else strategy.share_loss(loss)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_shortest_spec_of_a_default_strategy_is_its_name(name):
    assert format_spec(parse_strategy(name), STRATEGIES) == name
    assert STRATEGIES[name].__module__ == f"laconic.strategies.{name}"


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", BUILDERS)
def test_an_exact_strategy_gives_the_gradients_of_plain_pyg(name, kind, graph):
    torch.manual_seed(0)
    plain = BUILDERS[kind]().double()
    attached = copy.deepcopy(plain)
    strategy, shard = alone(name, graph)
    strategy.check(attached, shard)
    strategy.attach(attached, shard, seed=0)
    own = strategy.start_epoch(1)
    assert strategy.num_train == int(graph.train_mask.sum())
    expected = gradients(plain, Shard.whole(graph), None)
    for parameter, gradient in gradients(attached, own, strategy).items():
        torch.testing.assert_close(gradient, expected.pop(parameter), rtol=1e-10, atol=1e-10)
    assert not expected


@pytest.mark.parametrize("name", LOCAL)
def test_attaching_keeps_the_model_and_the_keys_of_its_state(name, graph):
    model = GCN(8, 16, 2, 4).double()
    keys = list(model.state_dict())
    strategy, shard = alone(name, graph)
    attachment = strategy.attach(model, shard, seed=0)
    assert attachment.model is model
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("name", LOCAL)
def test_an_epoch_that_is_taken_up_again_has_the_masks_it_had(name, graph):
    model = GCN(8, 16, 2, 4, dropout=0.5).double().train()
    strategy, shard = alone(name, graph)
    strategy.attach(model, shard, seed=3)

    def outputs(epoch: int, step: int) -> torch.Tensor:
        own = strategy.start_epoch(epoch, step)
        return model(own.x, own.edge_index)

    first, second = outputs(1, 0), model(shard.x, shard.edge_index)
    assert torch.equal(outputs(1, 0), first)
    assert torch.equal(outputs(1, 1), second)
    assert not torch.equal(first, second)
    assert not torch.equal(outputs(2, 0), first)


@pytest.mark.parametrize("name", LOCAL)
def test_state_goes_through_json_and_back(name, graph):
    (strategy, shard), (other, other_shard) = alone(name, graph), alone(name, graph)
    strategy.attach(GCN(8, 16, 2, 4).double(), shard, seed=0)
    strategy.start_epoch(3)
    other.attach(GCN(8, 16, 2, 4).double(), other_shard, seed=0)
    other.load_state(json.loads(json.dumps(strategy.state())))
    assert other.state() == strategy.state()


@pytest.mark.parametrize("name", LOCAL)
def test_in_one_process_nothing_is_sent(name, graph):
    strategy, _ = alone(name, graph)
    assert strategy.predict_traffic(GCN(8, 16, 2, 4).double()) == []


class OfRelations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = RGCNConv(8, 4, 3)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index, torch.zeros(edge_index.shape[1], dtype=torch.int64))


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("build", [OfRelations, lambda: torch.jit.script(nn.Linear(8, 4))])
def test_models_that_nobody_can_train_are_refused(name, build, graph):
    strategy, shard = alone(name, graph)
    with pytest.raises(UnsupportedModelError):
        strategy.check(build(), shard)


def test_an_unknown_strategy_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match=r"Unknown strategy 'sigle'. Choices: .*single.* Did you mean 'single'"):
        parse_strategy("sigle")
