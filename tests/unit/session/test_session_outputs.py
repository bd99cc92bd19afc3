"""session.predict() and session.embeddings(): all nodes by node id, the same on one rank and on several."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import APPNP, GCN, GIN, GCNConv

import laconic
from laconic.errors import ConfigError

EXACT = {"rtol": 0, "atol": 1e-10}


class Propagated(nn.Module):
    """Its last convolution has no weights."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.spread = nn.Linear(8, 6), nn.Linear(6, 4), APPNP(3, 0.1)

    def forward(self, x, edge_index):
        return self.spread(self.last(self.first(x).relu()), edge_index)


class Unordered(nn.Module):
    """The layer that is called last is declared first, and called by name."""

    def __init__(self):
        super().__init__()
        self.second, self.first = GCNConv(5, 4), GCNConv(8, 5)

    def forward(self, x, edge_index):
        return self.second(x=self.first(x, edge_index).tanh(), edge_index=edge_index)


def plain_rows(model, graph, layer, *, of_input):
    """What one process of plain PyG gives."""
    seen = []
    module = dict(model.named_modules())[layer]
    hook = module.register_forward_hook(
        lambda module, given, named, out: seen.append((*given, *named.values())[0] if of_input else out),
        with_kwargs=True,
    )
    model.eval()
    with torch.no_grad():
        out = model(graph.x, graph.edge_index)
    hook.remove()
    return seen[0].numpy(), out


CASES = [
    (lambda: GCN(8, 6, 2, 4, dropout=0.5), None, "convs.1", True),
    (lambda: GCN(8, 6, 3, 4, jk="cat"), None, "lin", True),
    (lambda: GCN(8, 6, 2, 4), "convs.0", "convs.0", False),
    (lambda: GIN(8, 6, 2, 4), None, "convs.1", True),
    (Propagated, None, "last", True),
    (Unordered, None, "second", True),
    (Unordered, "first", "first", False),
]


@pytest.mark.parametrize(("make", "layer", "plain", "of_input"), CASES)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_embeddings_are_those_of_one_process(make_graph, on_ranks, num_ranks, make, layer, plain, of_input):
    graph = make_graph(dtype=torch.float64)
    model = make().double()
    expected, _ = plain_rows(copy.deepcopy(model), graph, plain, of_input=of_input)

    def run(communicator):
        session = laconic.join(graph, communicator=communicator)
        own = session.attach(copy.deepcopy(model))
        found = session.embeddings(layer)
        assert own.training
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in own.modules())
        return found

    found, *others = on_ranks(num_ranks, run)
    assert found.node_ids.tolist() == list(range(60))
    assert found.layer == f"{'input' if of_input else 'output'} of {plain}"
    np.testing.assert_allclose(found.vectors, expected, **EXACT)
    assert [len(other.vectors) for other in others] == [0] * (num_ranks - 1)


@pytest.mark.parametrize(
    ("num_ranks", "strategy"),
    [(1, "auto"), (2, "auto"), (2, "gradient_only"), (2, "full_graph"), (2, "exchange(codec=quantize(bits=2))")],
)
def test_predictions_are_those_of_one_process(make_graph, on_ranks, num_ranks, strategy):
    graph = make_graph(dtype=torch.float64)
    model = GCN(8, 6, 2, 4, dropout=0.5).double()
    hidden, out = plain_rows(copy.deepcopy(model), graph, "convs.1", of_input=True)

    def run(communicator):
        session = laconic.join(graph, strategy=strategy, communicator=communicator)
        session.attach(copy.deepcopy(model))
        return session.predict(), session.embeddings()

    (found, rows), *others = on_ranks(num_ranks, run)
    assert found.node_ids.tolist() == list(range(60))
    assert (found.classes == out.argmax(1).numpy()).all()
    np.testing.assert_allclose(found.probabilities, out.softmax(1).float().numpy(), rtol=0, atol=1e-7)
    np.testing.assert_allclose(rows.vectors, hidden, **EXACT)
    assert [len(other.node_ids) for other, _ in others] == [0] * (num_ranks - 1)


def test_predictions_say_the_epoch_and_can_be_written(small_graph, tmp_path):
    session = laconic.join(small_graph)
    session.attach(GCN(8, 6, 2, 4))
    for _ in session.epochs(3):
        pass
    predictions = session.predict()
    assert predictions.epoch == 3
    laconic.trainer.write_predictions(predictions, tmp_path / "out.csv")
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 61


def test_a_layer_that_gives_no_rows_of_nodes_is_refused(small_graph):
    session = laconic.join(small_graph)
    session.attach(GCN(8, 6, 2, 4))
    with pytest.raises(ConfigError, match=r"Unknown layer of GCN 'conv\.0'.*Did you mean 'convs\.0'"):
        session.embeddings("conv.0")
    with pytest.raises(ConfigError, match=r"GCN does not call the layer 'convs' in.*Choices: .*convs\.0"):
        session.embeddings("convs")
