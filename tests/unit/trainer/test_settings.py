import dataclasses

import pytest

from laconic.errors import ConfigError
from laconic.models import MODELS
from laconic.trainer.config import Config, DataConfig, RunConfig, TrainingConfig
from laconic.trainer.config_file import model_layer, parse_override, resolve
from laconic.trainer.settings import explanations, list_settings


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
