"""Mini-batches of several ranks, each drawn from what its rank holds; in float64, ranks are threads."""

import copy
import dataclasses

import pytest
import torch
from torch_geometric.nn import GCN, GraphSAGE

from laconic.errors import ConfigError
from laconic.records import EpochRecord, LedgerRecord, read_records
from laconic.trainer import Config, RunConfig, TrainingConfig, resume, start
from laconic.trainer.checkpoint import Checkpoints

HISTORICAL = "gradient_only(keep=rows, partitioner=random, refresh_every=2, gradual=False)"
MOVING = "grappa(partitioner=random, repartition_every=2, variable=1, correction=node)"


@pytest.fixture
def graph(make_graph):
    """Twenty training nodes of sixty, all among the first twenty: ranks have unequal numbers of them."""
    graph = make_graph(dtype=torch.float64)
    third = torch.arange(60) // 20
    return dataclasses.replace(graph, train_mask=third == 0, val_mask=third == 1, test_mask=third == 2)


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return GraphSAGE(8, 16, 2, 4).double()


def config_at(folder, **training):
    defaults = {"epochs": 4, "lr": 0.05, "evaluate_every": 1, "batch_size": 5, "fanouts": (-1, -1)}
    return Config(
        training=TrainingConfig(**defaults | training),
        run=RunConfig(folder=str(folder), checkpoint_every=1, tensorboard=False, threads=1),
    )


def rows_of(folder):
    rows = read_records(folder / "metrics.jsonl", EpochRecord)
    return [dataclasses.replace(row, seconds=0, evaluate_seconds=0, wait_seconds=0, switch_seconds=0) for row in rows]


def weights_of(folder, which="last"):
    return Checkpoints(folder / "checkpoints").load(which).model


def train_on(on_ranks, num_ranks, config, graph, model):
    return on_ranks(
        num_ranks,
        lambda communicator: start(config, graph=graph, model=copy.deepcopy(model), communicator=communicator),
    )


def check_close(one, other):
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=1e-8, msg=name)


@pytest.mark.parametrize("strategy", [HISTORICAL, MOVING.replace("variable=1", "variable=0")])
def test_one_rank_trains_on_the_batches_of_a_single_machine(tmp_path, graph, model, on_ranks, strategy):
    start(config_at(tmp_path / "single"), graph=graph, model=copy.deepcopy(model))
    train_on(on_ranks, 1, config_at(tmp_path / "one", strategy=strategy), graph, model)
    check_close(weights_of(tmp_path / "single"), weights_of(tmp_path / "one"))


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("strategy", [HISTORICAL, MOVING])
def test_a_batch_of_everything_is_the_step_without_batches(tmp_path, graph, model, on_ranks, num_ranks, strategy):
    whole = config_at(tmp_path / "whole", strategy=strategy, batch_size=0, fanouts=())
    batches = config_at(tmp_path / "batches", strategy=strategy, batch_size=1000)
    train_on(on_ranks, num_ranks, whole, graph, model)
    train_on(on_ranks, num_ranks, batches, graph, model)
    check_close(weights_of(tmp_path / "whole"), weights_of(tmp_path / "batches"))
    for row, other in zip(rows_of(tmp_path / "whole"), rows_of(tmp_path / "batches"), strict=True):
        assert other.loss == pytest.approx(row.loss, rel=0, abs=1e-8)


def test_a_halo_row_has_the_degree_of_the_whole_graph_in_a_batch(tmp_path, graph, on_ranks):
    gcn = GCN(8, 16, 2, 4).double()
    whole = config_at(tmp_path / "whole", strategy=HISTORICAL, batch_size=0, fanouts=())
    # One hop more than the model looks: the degrees of all rows that it reads are then those of the whole graph.
    batches = config_at(tmp_path / "batches", strategy=HISTORICAL, batch_size=1000, fanouts=(-1, -1, -1))
    train_on(on_ranks, 3, whole, graph, gcn)
    train_on(on_ranks, 3, batches, graph, gcn)
    check_close(weights_of(tmp_path / "whole"), weights_of(tmp_path / "batches"))


def test_norms_of_ranks_that_run_out_of_training_nodes_stay_alike(tmp_path, graph, on_ranks):
    few = dataclasses.replace(graph, train_mask=torch.arange(60) < 3)
    model = GraphSAGE(8, 16, 2, 4, norm="batch_norm").double()
    config = config_at(tmp_path / "run", strategy=HISTORICAL, batch_size=1)
    summaries = train_on(on_ranks, 3, config, few, model)
    assert {summary.ending for summary in summaries} == {"finished"}
    norms = {name: value for name, value in weights_of(tmp_path / "run").items() if "running" in name}
    assert norms
    assert all(bool(torch.isfinite(value).all()) for value in norms.values())


@pytest.mark.parametrize("strategy", [HISTORICAL, "exchange(partitioner=random)"])
def test_ranks_without_any_node_take_part_in_steps_on_the_whole_graph(tmp_path, graph, model, on_ranks, strategy):
    tiny = dataclasses.replace(
        graph,
        x=graph.x[:3],
        y=graph.y[:3],
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]),
        **{name: torch.arange(3) == number for number, name in enumerate(("train_mask", "val_mask", "test_mask"))},
        node_ids=torch.arange(3),
    )
    config = config_at(tmp_path / "run", strategy=strategy, batch_size=0, fanouts=())
    summaries = train_on(on_ranks, 5, config, tiny, model)
    assert {summary.ending for summary in summaries} == {"finished"}


@pytest.mark.parametrize("setting", ["correction=sweep", "correction=degree"])
def test_what_batches_would_not_do_is_refused(tmp_path, graph, model, on_ranks, setting):
    strategy = f"grappa(partitioner=random, variable=1, {setting})"

    def refused(communicator):
        with pytest.raises(ConfigError, match="trains on the whole graph in each step"):
            start(config_at(tmp_path / "run", strategy=strategy), graph=graph, model=model, communicator=communicator)

    on_ranks(1, refused)


@pytest.mark.parametrize("strategy", [HISTORICAL, MOVING])
def test_ranks_take_equal_numbers_of_steps_and_only_gradients_travel_in_them(
    tmp_path, graph, model, on_ranks, strategy
):
    # So small that some rank runs out of training nodes before the others.
    config = config_at(tmp_path / "run", strategy=strategy, batch_size=2, fanouts=(3, 2), evaluate_every=100)
    train_on(on_ranks, 4, config, graph, model)
    rows = read_records(tmp_path / "run" / "ledger.jsonl", LedgerRecord)
    second = [row for row in rows if row.epoch == 2]
    assert {row.phase for row in second} <= {"gradients", "records", "checkpoint"}
    messages = {row.rank: row.num_messages for row in second if (row.phase, row.direction) == ("gradients", "sent")}
    assert len(messages) == 4
    assert len(set(messages.values())) == 1


def test_ranks_without_training_nodes_take_part(tmp_path, graph, model, on_ranks):
    lonely = dataclasses.replace(graph, train_mask=torch.arange(60) < 1)
    summaries = train_on(on_ranks, 4, config_at(tmp_path / "run", strategy=HISTORICAL), lonely, model)
    assert {summary.ending for summary in summaries} == {"finished"}
    assert rows_of(tmp_path / "run")[-1].loss < rows_of(tmp_path / "run")[0].loss


@pytest.mark.parametrize("strategy", [HISTORICAL, MOVING])
def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path, graph, model, on_ranks, strategy):
    settings = {"strategy": strategy, "batch_size": 2, "fanouts": (3, 2)}
    train_on(on_ranks, 3, config_at(tmp_path / "whole", **settings, epochs=5), graph, model)
    train_on(on_ranks, 3, config_at(tmp_path / "halved", **settings, epochs=3), graph, model)
    longer = [{"training": {"epochs": 5}}]
    on_ranks(
        3,
        lambda communicator: resume(
            tmp_path / "halved", longer, graph=graph, model=copy.deepcopy(model), communicator=communicator
        ),
    )
    assert rows_of(tmp_path / "halved") == rows_of(tmp_path / "whole")
    whole, halved = weights_of(tmp_path / "whole"), weights_of(tmp_path / "halved")
    assert all(torch.equal(halved[name], value) for name, value in whole.items())


def test_a_share_of_the_neighbours_on_other_ranks_may_be_drawn(tmp_path, graph, model, on_ranks):
    def losses(name, remote):
        strategy = f"gradient_only(partitioner=random, remote={remote})"
        train_on(on_ranks, 3, config_at(tmp_path / name, strategy=strategy, batch_size=1000), graph, model)
        return [row.loss for row in rows_of(tmp_path / name)]

    alone = "grappa(partitioner=random)"
    train_on(on_ranks, 3, config_at(tmp_path / "alone", strategy=alone, batch_size=1000), graph, model)
    without = [row.loss for row in rows_of(tmp_path / "alone")]
    assert losses("none", 0.0) == pytest.approx(without, rel=0, abs=1e-8)
    assert losses("half", 0.5) != pytest.approx(losses("all", 1.0), rel=1e-3)
