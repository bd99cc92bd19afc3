"""Laconic under a loop of one's own: the diff in the README, and what it promises."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import laconic
from laconic.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_loop.py"


def test_the_example_learns_and_differs_from_a_plain_loop_by_five_lines(capsys):
    specification = importlib.util.spec_from_file_location("plain_loop", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with torch.random.fork_rng():
        scores = module.main("sbm(nodes=300)", num_epochs=20)
    assert scores["test"] > 0.6
    assert "epoch 20: loss" in capsys.readouterr().out
    assert EXAMPLE.read_text().count("  # +\n") == 5


def test_the_loss_is_the_mean_over_the_training_nodes(small_graph):
    session = laconic.join(small_graph)
    model, shard = session.attach(GCN(8, 16, 2, 4))
    out = model(shard.x, shard.edge_index)
    expected = F.cross_entropy(out[small_graph.train_mask], small_graph.y[small_graph.train_mask])
    torch.testing.assert_close(session.loss(F.cross_entropy, out, shard), expected)


def test_a_session_scores_on_the_whole_graph_without_dropout(small_graph):
    session = laconic.join(small_graph)
    model, shard = session.attach(GCN(8, 16, 2, 4, dropout=0.9))
    scores = session.evaluate()
    assert model.training
    model.eval()
    hits = model(shard.x, shard.edge_index).argmax(1) == shard.y
    assert scores["val"] == pytest.approx(float(hits[shard.val_mask].float().mean()), abs=1e-6)


def test_epochs_move_the_keys_of_dropout(small_graph):
    session = laconic.join(small_graph, seed=3)
    model, shard = session.attach(GCN(8, 16, 2, 4, dropout=0.5))
    passes = [[model(shard.x, shard.edge_index).detach() for _ in session.epochs(2)] for _ in range(2)]
    assert torch.equal(passes[0][0], passes[1][0])
    assert not torch.equal(passes[0][0], passes[0][1])


def test_a_pyg_data_object_and_a_file_are_the_same_graph(small_graph, tmp_path):
    fields = ("x", "y", "edge_index", "train_mask", "val_mask", "test_mask")
    data = Data(**{name: getattr(small_graph, name) for name in fields})
    laconic.save_npz(small_graph, tmp_path / "small.npz")
    from_data, from_file = laconic.join(data).data, laconic.join(tmp_path / "small.npz").data
    for name in fields:
        if name != "edge_index":
            assert torch.equal(getattr(from_data, name), getattr(from_file, name)), name
    assert sorted(from_data.edge_index.t().tolist()) == sorted(from_file.edge_index.t().tolist())


def test_a_session_without_a_model_says_what_to_call(small_graph):
    session = laconic.join(small_graph)
    with pytest.raises(ConfigError, match=r"session\.attach"):
        next(iter(session.epochs(3)))
    with pytest.raises(ConfigError, match=r"session\.attach"):
        session.evaluate()


def test_an_unknown_strategy_lists_the_choices(small_graph):
    with pytest.raises(ConfigError, match=r"Unknown strategy 'singel'.*Did you mean 'single'"):
        laconic.join(small_graph, strategy="singel")


def test_every_public_name_is_there():
    for name in laconic.__all__:
        assert getattr(laconic, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        laconic.nothing  # noqa: B018
