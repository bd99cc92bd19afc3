"""Runs with a model of the user's own, from a file or as an object: what config.json says, and how they go on."""

import dataclasses
import json

import pytest
from torch import nn
from torch_geometric.nn import GCN

from laconic.errors import ConfigError, UnsupportedModelError
from laconic.models import build_model, parse_model
from laconic.trainer import Config, RunConfig, TrainingConfig, predict, resume, start
from laconic.trainer.early_checks import check_predict, check_resume

NET = """
from torch_geometric.nn import GCN

class Net(GCN):
    def __init__(self, in_channels, out_channels, hidden=8):
        super().__init__(in_channels, hidden, 2, out_channels)
"""


def config_of(folder, strategy="single", **rest):
    run = RunConfig(folder=str(folder), tensorboard=False, threads=1)
    return Config(training=TrainingConfig(epochs=3, strategy=strategy), run=run, **rest)


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    return parse_model(f"{tmp_path}/net.py:Net")


def test_config_json_says_which_objects_were_given(tmp_path, small_graph):
    start(config_of(tmp_path / "run"), graph=small_graph, model=GCN(8, 8, 2, 4))
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["model"] == {"name": "GCN", "source": "given", "module": "torch_geometric.nn.models.basic_gnn"}
    assert config["data"]["source"].startswith("given(name='random', num_nodes=60, checksum=")


def test_the_folder_of_a_run_is_named_after_the_model_that_was_given(tmp_path, small_graph, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert start(config_of(""), graph=small_graph, model=GCN(8, 8, 2, 4)).folder.name == "random-GCN-001"


def test_a_run_on_objects_goes_on_with_them_and_says_what_to_give_without(tmp_path, small_graph):
    run = tmp_path / "run"
    start(config_of(run), graph=small_graph, model=GCN(8, 8, 2, 4))
    longer = [{"training": {"epochs": 4}}]
    for without in (resume, predict):
        given = [run, longer] if without is resume else [run]
        with pytest.raises(ConfigError, match=r"graph of this run was an object.*name='random'.*graph=graph"):
            without(*given, model=GCN(8, 8, 2, 4))
        with pytest.raises(ConfigError, match=r"model of this run was an object.*a GCN of module.*model=model"):
            without(*given, graph=small_graph)
    with pytest.raises(ConfigError, match="model=model"):
        check_resume(run, longer, 2)
    with pytest.raises(ConfigError, match="model=model"):
        check_predict(run, tmp_path / "out.npz", source=None, which="best", num_ranks=2)
    assert resume(run, longer, graph=small_graph, model=GCN(8, 8, 2, 4)).num_epochs == 4
    assert predict(run, graph=small_graph, model=GCN(8, 8, 2, 4)).classes.shape == (60,)


def test_a_graph_that_was_given_may_be_given_as_a_file_to_predict(tmp_path, small_graph):
    start(config_of(tmp_path / "run"), graph=small_graph)
    with pytest.raises(ConfigError, match="--data FILE"):
        check_predict(tmp_path / "run", tmp_path / "out.npz", source=None, which="best", num_ranks=2)


def test_ranks_train_an_own_model_as_one_does(tmp_path, make_graph, on_ranks, net):
    graph = make_graph()
    one = start(config_of(tmp_path / "one", model=net), graph=graph)
    many = config_of(tmp_path / "many", strategy="exchange", model=net)
    (rank_0, *_) = on_ranks(2, lambda communicator: start(many, graph=graph, communicator=communicator))
    assert rank_0.best.val == one.best.val
    assert (tmp_path / "many/model/net.py").read_text() == NET
    (many_ranks, other) = on_ranks(2, lambda one: predict(tmp_path / "many", graph=graph, communicator=one))
    assert len(other.node_ids) == 0
    assert (many_ranks.classes == predict(tmp_path / "one", graph=graph).classes).all()


def test_ranks_with_different_code_say_so_before_they_train(tmp_path, small_graph, on_ranks, net):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/net.py").write_text(NET + "# changed\n")
    models = [net, parse_model(f"{tmp_path}/there/net.py:Net")]
    config = config_of(tmp_path / "run", strategy="exchange")

    def run(communicator):
        own = dataclasses.replace(config, model=models[communicator.rank])
        with pytest.raises(ConfigError, match=r"Ranks disagree: model\.sha256"):
            start(own, graph=small_graph, communicator=communicator)

    on_ranks(2, run)
    assert not (tmp_path / "run").exists()


def test_a_model_that_lacks_a_width_is_refused_before_a_folder_is_made(tmp_path, small_graph):
    (tmp_path / "net.py").write_text(NET.replace("in_channels", "in_size"))
    model = parse_model(f"{tmp_path}/net.py:Net")
    with pytest.raises(ConfigError, match=r"Net needs `in_size`.*8 features and 4 classes"):
        start(config_of(tmp_path / "run", model=model), graph=small_graph)
    assert not (tmp_path / "run").exists()


def test_an_own_model_learns_as_the_same_object_does(tmp_path, small_graph, net):
    built = net.build(8, 4)
    assert isinstance(built, nn.Module)
    by_file = start(config_of(tmp_path / "file", model=net), graph=small_graph)
    seeded = build_model(net, num_features=8, num_classes=4, seed=0)
    assert start(config_of(tmp_path / "object"), graph=small_graph, model=seeded).best.val == by_file.best.val


class GivesTwo(GCN):
    def forward(self, x, edge_index):
        out = super().forward(x, edge_index)
        return out, x


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (GCN(8, 8, 2, 3), r"of shape \(60, 4\).*It gave a tensor of shape \(60, 3\)"),
        (GivesTwo(8, 8, 2, 4), "one tensor with a row per node; it returned a tuple"),
    ],
)
def test_outputs_of_another_shape_are_refused_with_the_one_that_is_wanted(tmp_path, small_graph, model, told):
    with pytest.raises(UnsupportedModelError, match=told):
        start(config_of(tmp_path / "run"), graph=small_graph, model=model)


def test_a_model_may_know_more_classes_than_the_graph_has(tmp_path, small_graph):
    assert start(config_of(tmp_path / "run"), graph=small_graph, model=GCN(8, 8, 2, 9)).num_epochs == 3
