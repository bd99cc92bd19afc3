import dataclasses

import pytest

from laconic.errors import ConfigError
from laconic.models import MODELS
from laconic.strategies import STRATEGIES
from laconic.trainer.config import Config, DataConfig, RunConfig, TrainingConfig
from laconic.trainer.config_file import model_layer, parse_override, resolve
from laconic.trainer.settings import explanations, list_settings, list_strategy_settings


@pytest.mark.parametrize("section", [DataConfig, TrainingConfig, RunConfig, *MODELS.values()])
def test_every_setting_is_followed_by_its_explanation(section):
    assert list(explanations(section)) == [field.name for field in dataclasses.fields(section)]
    assert all(text.endswith(".") for text in explanations(section).values())


@pytest.mark.parametrize("model", MODELS)
def test_setting_everything_to_its_listed_default_changes_nothing(model):
    overrides = [parse_override(f"{setting.name}={setting.default}") for setting in list_settings(model)]
    assert resolve([model_layer(model), *overrides]) == resolve([model_layer(model)])
    assert resolve([]) == Config()


def test_settings_of_an_unknown_model_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'gcn'"):
        list_settings("gcnn")


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_setting_of_a_strategy_has_a_default_and_an_explanation(name):
    settings = list_strategy_settings(name)
    fields = [field for field in dataclasses.fields(STRATEGIES[name]) if field.init]
    assert [setting.name for setting in settings] == [field.name for field in fields]
    assert all(len(setting.explanation) > 10 for setting in settings)


def test_an_explanation_of_several_lines_or_of_two_settings_is_whole():
    told = {setting.name: setting.explanation for setting in list_strategy_settings("full_graph")}
    assert told["codec"] == told["schedule"]
    assert told["codec"].endswith("For grids with whole rows (pj = 1).")
    assert told["link_mbit"].startswith("speed of a rank's link")
    assert list_strategy_settings("single") == list_strategy_settings("auto") == []
    with pytest.raises(ConfigError, match="Did you mean 'gradient_only'"):
        list_strategy_settings("gradients_only")
