"""A strategy under an earlier name is the same strategy, and is shown under its present name."""

import json

import numpy as np
import pytest
from torch_geometric.nn import GCN

import laconic
from laconic.errors import ConfigError
from laconic.specs import format_spec
from laconic.strategies import ALIASES, STRATEGIES, parse_strategy, present_spec, strategy_for
from laconic.strategies.exchange import Exchange
from laconic.trainer import Config, RunConfig, TrainingConfig, predict, resume, start
from laconic.trainer.config_file import parse_override, read_layer, resolve

OLD, NEW = "compressed_halo(partitioner=random)", "exchange(partitioner=random)"


@pytest.fixture
def old_folder(tmp_path, small_graph, on_ranks):
    """Returns the folder of a run of two epochs, as it was written before the strategy had its present name."""
    folder = tmp_path / "run"
    run_on_ranks(on_ranks, small_graph, [config_at(folder, NEW)] * 2)
    config = folder / "config.json"
    config.write_text(config.read_text().replace(NEW, OLD))
    assert strategy_in(folder) == OLD
    return folder


def config_at(folder, strategy):
    return Config(
        training=TrainingConfig(strategy=strategy, epochs=2, evaluate_every=1),
        run=RunConfig(folder=str(folder), tensorboard=False, threads=1),
    )


def run_on_ranks(on_ranks, graph, configs):
    def run(communicator):
        return start(configs[communicator.rank], graph=graph, model=GCN(8, 6, 2, 4), communicator=communicator)

    return on_ranks(2, run)


def strategy_in(folder):
    return json.loads((folder / "config.json").read_text())["training"]["strategy"]


@pytest.mark.parametrize(
    ("text", "present"),
    [
        ("compressed_halo", "exchange"),
        (" compressed_halo (codec=cast)", "exchange(codec=cast)"),
        ("compressed_halo(codec=quantize(bits=2))", "exchange(codec=quantize(bits=2))"),
        ("exchange(codec=cast)", "exchange(codec=cast)"),
        ("full_graph(exchange=dense)", "full_graph(exchange=dense)"),
        ("auto", "auto"),
    ],
)
def test_a_spec_has_the_present_name_and_the_settings_that_were_given(text, present):
    assert present_spec(text) == present
    assert TrainingConfig(strategy=text).strategy == present


def test_an_earlier_name_is_no_name_of_today_and_stands_for_one():
    assert not set(ALIASES) & set(STRATEGIES)
    assert set(ALIASES.values()) <= set(STRATEGIES)


def test_a_strategy_is_built_by_its_earlier_name_and_gives_back_its_present_one():
    strategy = parse_strategy("compressed_halo(codec=cast, raw_last=True)")
    assert isinstance(strategy, Exchange)
    assert format_spec(strategy, STRATEGIES) == "exchange(codec='cast', raw_last=True)"
    assert strategy_for("compressed_halo", 3) == strategy_for("auto", 3) == "exchange"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("exchagne", "Unknown strategy 'exchagne'.*Did you mean 'exchange'"),
        ("gradient_onyl", "Unknown strategy 'gradient_onyl'.*Did you mean 'gradient_only'"),
        ("compressed_halo(codek=cast)", "Unknown strategy exchange argument 'codek'.*Did you mean 'codec'"),
    ],
)
def test_unknown_names_are_told_with_their_neighbours(text, told):
    with pytest.raises(ConfigError, match=told):
        parse_strategy(text)


def test_settings_files_and_flags_may_have_the_earlier_name(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[training]\nstrategy = "{OLD}"\n')
    assert resolve([read_layer(recipe)]).training.strategy == NEW
    assert resolve([parse_override(f"training.strategy={OLD}")]).training.strategy == NEW


@pytest.mark.parametrize("layers", [[], [{"training": {"strategy": OLD}}], [{"training": {"strategy": NEW}}]])
def test_a_run_folder_with_the_earlier_name_is_resumed_and_has_the_present_one_then(
    old_folder, small_graph, on_ranks, layers
):
    def go_on(communicator):
        more = [*layers, {"training": {"epochs": 3}}]
        return resume(old_folder, more, graph=small_graph, model=GCN(8, 6, 2, 4), communicator=communicator)

    summaries = on_ranks(2, go_on)
    assert {(summary.strategy, summary.num_epochs) for summary in summaries} == {(NEW, 3)}
    assert strategy_in(old_folder) == NEW


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_run_folder_with_the_earlier_name_predicts(old_folder, small_graph, on_ranks, num_ranks):
    def ask(communicator):
        return predict(old_folder, graph=small_graph, model=GCN(8, 6, 2, 4), communicator=communicator)

    predictions = on_ranks(num_ranks, ask)[0]
    np.testing.assert_array_equal(predictions.node_ids, np.arange(small_graph.num_nodes))


def test_ranks_with_the_earlier_and_the_present_name_train_together(tmp_path, small_graph, on_ranks):
    summaries = run_on_ranks(on_ranks, small_graph, [config_at(tmp_path / "run", text) for text in (OLD, NEW)])
    assert {summary.strategy for summary in summaries} == {NEW}
    assert strategy_in(tmp_path / "run") == NEW


def test_ranks_with_the_earlier_and_the_present_name_join_one_session(small_graph, on_ranks):
    def join(communicator):
        session = laconic.join(small_graph, strategy=(OLD, NEW)[communicator.rank], communicator=communicator)
        return format_spec(session.strategy, STRATEGIES)

    assert on_ranks(2, join) == ["exchange(partitioner='random')"] * 2
