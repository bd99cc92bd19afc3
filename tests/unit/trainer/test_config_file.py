import dataclasses
from pathlib import Path

import pytest

from laconic.errors import ConfigError
from laconic.models import MODELS, parse_model
from laconic.trainer.config import Config, DataConfig, RunConfig, TrainingConfig
from laconic.trainer.config_file import (
    as_layer,
    differences,
    merge,
    model_layer,
    parse_override,
    read_layer,
    resolve,
)

RECIPES = Path(__file__).parents[3] / "examples" / "recipes"


def test_no_layer_gives_the_defaults():
    assert resolve([]) == Config()


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_configuration_resolves_to_itself(name):
    config = Config(
        data=DataConfig(source="rmat"),
        model=parse_model(name),
        training=TrainingConfig(batch_size=64, fanouts=(5, 3), lr=0.02, metric="roc_auc"),
        run=RunConfig(folder="runs/x", threads=2),
    )
    assert resolve([as_layer(config)]) == config


def test_later_layers_win():
    layers = [{"training": {"lr": 0.1, "epochs": 5}}, {"training": {"lr": 0.2}}, parse_override("training.lr=0.3")]
    config = resolve(layers)
    assert (config.training.lr, config.training.epochs) == (0.3, 5)


def test_a_layer_that_names_another_model_replaces_the_settings_of_the_first():
    config = resolve([{"model": {"name": "gat", "heads": 2, "hidden": 32}}, model_layer("gcn(layers=3)")])
    assert config.model == parse_model("gcn(layers=3)")


def test_a_layer_that_names_the_same_model_keeps_its_other_settings():
    config = resolve([{"model": {"name": "gat", "heads": 2}}, model_layer("gat(hidden=32)")])
    assert config.model == parse_model("gat(hidden=32, heads=2)")


def test_what_is_merged_is_given_together_and_nothing_of_it_is_lost():
    given = merge([model_layer("gcn(hidden=8)"), parse_override("model.name=sage"), parse_override("model.layers=3")])
    assert resolve([given]).model == parse_model("sage(hidden=8, layers=3)")
    assert resolve([{"model": {"name": "gat", "heads": 2, "dropout": 0.1}}, given]).model == resolve([given]).model


def test_a_setting_that_the_other_model_does_not_have_is_refused_with_both_names():
    given = merge([parse_override("model.heads=2"), parse_override("model.name=sage")])
    with pytest.raises(ConfigError, match="Unknown setting of model sage 'heads'"):
        resolve([given])


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("training.lr=0.05", {"training": {"lr": 0.05}}),
        ("training.fanouts=[10, 5]", {"training": {"fanouts": [10, 5]}}),
        ("run.tensorboard=false", {"run": {"tensorboard": False}}),
        ("training.optimizer=sgd", {"training": {"optimizer": "sgd"}}),
        ("training.optimizer='sgd'", {"training": {"optimizer": "sgd"}}),
        ("data.source=sbm(nodes=50)", {"data": {"source": "sbm(nodes=50)"}}),
        ("data.source=/a=b/c.npz", {"data": {"source": "/a=b/c.npz"}}),
    ],
)
def test_an_override_reads_its_value_as_toml_or_as_a_word(text, layer):
    assert parse_override(text) == layer


@pytest.mark.parametrize("text", ["lr=0.1", "training.lr", "training=0.1", "=1", ".lr=1", ""])
def test_an_override_without_section_key_and_value_is_refused(text):
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        parse_override(text)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"trainning": {}}, "Unknown section .*'trainning'.*data, model, run, training.*Did you mean 'training'"),
        ({"training": {"lrr": 1}}, "Unknown setting in section training 'lrr'.*Did you mean 'lr'"),
        ({"training": {"lr": "fast"}}, "training.lr should be a number; got 'fast'"),
        ({"training": {"epochs": 2.5}}, "training.epochs should be a whole number; got 2.5"),
        ({"training": {"epochs": True}}, "training.epochs should be a whole number"),
        ({"training": {"epochs": 0}}, "training.epochs should be 1 or more"),
        ({"training": {"lr": -1}}, "training.lr should be above 0"),
        ({"training": {"lr": float("nan")}}, "training.lr should be above 0"),
        ({"training": {"weight_decay": -1}}, "weight_decay should be 0 or more"),
        ({"training": {"momentum": 1}}, "momentum should be at least 0 and below 1"),
        ({"training": {"optimizer": "adm"}}, "value of training.optimizer 'adm'. Choices: adam, adamw, sgd.*'adam'"),
        ({"training": {"fanouts": 10, "batch_size": 8}}, "training.fanouts should be a list"),
        ({"training": {"fanouts": [0], "batch_size": 8}}, "training.fanouts should hold numbers of 1 or more"),
        ({"training": {"fanouts": [5, 5]}}, "batch_size is 0"),
        ({"run": {"tensorboard": "yes"}}, "run.tensorboard should be true or false"),
        ({"run": {"folder": 3}}, "run.folder should be a text"),
        ({"run": {"checkpoint_every": 0}}, "checkpoint_every should be 1 or more"),
        ({"model": {"name": "gcnn"}}, "Unknown model 'gcnn'.*Did you mean 'gcn'"),
        ({"model": {"name": ["gcn"]}}, "Unknown model"),
        ({"model": {"name": "gcn", "heads": 2}}, "Unknown setting of model gcn 'heads'"),
        ({"model": {"hidden": 0}}, "hidden should be at least 1"),
        ({"training": 3}, "training should be a section"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_what_it_takes(layer, message):
    with pytest.raises(ConfigError, match=message):
        resolve([layer])


def test_whole_numbers_do_for_fractions():
    assert resolve([{"training": {"lr": 1}}]).training == TrainingConfig(lr=1.0)


def test_a_toml_file_and_a_runs_own_json_are_both_layers(tmp_path):
    toml = tmp_path / "a.toml"
    toml.write_text('[model]\nname = "sage"\nhidden = 8\n[training]\nlr = 0.5\n')
    config = resolve([read_layer(toml)])
    assert config == Config(model=parse_model("sage(hidden=8)"), training=TrainingConfig(lr=0.5))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.toml", None, "cannot be read"),
        ("bad.toml", "[training", "not sound TOML"),
        ("bad.json", "{", "not sound JSON"),
        ("list.json", "[1]", "should hold sections"),
        ("bytes.toml", b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_configuration_file_that_cannot_be_read_is_named(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message) as error:
        read_layer(path)
    assert str(path) in str(error.value)


def test_differences_name_what_decides_the_result_but_for_the_epochs():
    old = Config()
    new = Config(
        model=parse_model("gcn(hidden=8)"),
        training=dataclasses.replace(old.training, lr=0.5, epochs=999),
        run=RunConfig(threads=7),
    )
    assert differences(old, new) == ["model.hidden: 64 -> 8", "training.lr: 0.01 -> 0.5"]
    assert "model.name: gcn -> mlp" in differences(old, Config(model=parse_model("mlp")))
    assert differences(old, old) == []


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_is_a_sound_configuration_and_says_its_own_command(path):
    resolve([read_layer(path)])
    assert f"{path.stem}.npz --config examples/recipes/{path.name}" in path.read_text()


def test_the_recipe_of_cora_is_that_of_kipf_and_welling():
    config = resolve([read_layer(RECIPES / "cora.toml")])
    assert config.model == parse_model("gcn(hidden=16, layers=2, dropout=0.5, input_dropout=0.5)")
    training = TrainingConfig(epochs=200, evaluate_every=1, optimizer="adam", lr=0.01, weight_decay=5e-4)
    assert config.training == training
    assert config.data.normalise_features == "row"
