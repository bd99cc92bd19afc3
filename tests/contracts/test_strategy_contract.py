"""What every strategy promises. A new member is tested here by being in STRATEGIES."""

import copy
import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
from tests.placing import place, start
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, RGCNConv

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport.local import LocalTransport
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.gradients.worker import Worker
from laconic.graph import Shard
from laconic.specs import format_spec
from laconic.strategies import STRATEGIES, parse_strategy
from laconic.strategies.base import ExpectedRun

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


def gradients(model: nn.Module, shard: Shard, worker: Worker | None) -> dict[str, torch.Tensor]:
    model.train()
    logits = model(shard.x, shard.edge_index)
    rows = shard.train_rows
    loss = F.cross_entropy(logits[rows], shard.y[rows], reduction="sum") / len(rows)
    (loss if worker is None else worker.share_loss(loss)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_shortest_spec_of_a_default_strategy_is_its_name(name):
    assert format_spec(parse_strategy(name), STRATEGIES) == name
    assert STRATEGIES[name].__module__ == f"laconic.strategies.{name}"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_settings_alone_that_stay_as_they_are(name, graph):
    strategy = parse_strategy(name)
    before = vars(strategy).copy()
    assert set(before) == {field.name for field in dataclasses.fields(strategy)}
    run = ExpectedRun(GCN(8, 16, 2, 4).double())
    strategy.start(graph, Communicator(LocalTransport(), Ledger(0)), run).start_epoch(1)
    assert vars(strategy) == before
    assert strategy == parse_strategy(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        strategy.placement = None


@pytest.mark.parametrize("name", LOCAL)
def test_one_part_of_the_graph_starts_workers_that_know_nothing_of_each_other(name, graph):
    first = place(name, graph, GCN(8, 16, 2, 4).double())
    second = dataclasses.replace(first, run=ExpectedRun(GCN(8, 16, 2, 4).double()))
    one, other = first.start(seed=0), second.start(seed=0)
    before = other.state(), other.shard
    one.start_epoch(5)
    assert (one.model, other.model) == (first.run.model, second.run.model)
    assert (other.state(), other.shard) == before


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", BUILDERS)
def test_an_exact_strategy_gives_the_gradients_of_plain_pyg(name, kind, graph):
    torch.manual_seed(0)
    plain = BUILDERS[kind]().double()
    attached = copy.deepcopy(plain)
    placed = place(name, graph, attached)
    placed.check()
    worker = placed.start(seed=0)
    own = worker.start_epoch(1)
    assert worker.num_train == placed.num_train == int(graph.train_mask.sum())
    expected = gradients(plain, Shard.whole(graph), None)
    for parameter, gradient in gradients(attached, own, worker).items():
        torch.testing.assert_close(gradient, expected.pop(parameter), rtol=1e-10, atol=1e-10)
    assert not expected


@pytest.mark.parametrize("name", LOCAL)
def test_attaching_keeps_the_model_and_the_keys_of_its_state(name, graph):
    model = GCN(8, 16, 2, 4).double()
    keys = list(model.state_dict())
    assert start(name, graph, model).model is model
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("name", LOCAL)
def test_an_epoch_that_is_taken_up_again_has_the_masks_it_had(name, graph):
    model = GCN(8, 16, 2, 4, dropout=0.5).double().train()
    worker = start(name, graph, model, seed=3)

    def outputs(epoch: int, step: int) -> torch.Tensor:
        own = worker.start_epoch(epoch, step)
        return model(own.x, own.edge_index)

    own = worker.start_epoch(1)
    first, second = (model(own.x, own.edge_index) for _ in range(2))
    assert torch.equal(outputs(1, 0), first)
    assert torch.equal(outputs(1, 1), second)
    assert not torch.equal(first, second)
    assert not torch.equal(outputs(2, 0), first)


@pytest.mark.parametrize("name", LOCAL)
def test_state_goes_through_json_and_back(name, graph):
    worker, other = (start(name, graph, GCN(8, 16, 2, 4).double()) for _ in range(2))
    worker.start_epoch(3)
    other.load_state(json.loads(json.dumps(worker.state())))
    assert other.state() == worker.state()


@pytest.mark.parametrize("name", LOCAL)
def test_in_one_process_nothing_is_sent(name, graph):
    assert start(name, graph, GCN(8, 16, 2, 4).double()).predict_traffic() == []


class OfRelations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = RGCNConv(8, 4, 3)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index, torch.zeros(edge_index.shape[1], dtype=torch.int64))


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("build", [OfRelations, lambda: torch.jit.script(nn.Linear(8, 4))])
def test_models_that_nobody_can_train_are_refused(name, build, graph):
    with pytest.raises(UnsupportedModelError):
        place(name, graph, build()).check()


def test_an_unknown_strategy_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match=r"Unknown strategy 'sigle'. Choices: .*single.* Did you mean 'single'"):
        parse_strategy("sigle")
