"""Runs of `gradient_only` that are cut and taken up again, and what their checkpoints hold. Ranks are threads here."""

import copy
import json

import numpy as np
import pytest
import torch
from tests.unit.trainer.test_ranks import (
    after_step,
    check_equal_runs,
    check_same_result,
    checkpoint_in,
    config_at,
    epochs_in,
    ledger_in,
    tell_to_end,
)
from torch_geometric.nn import GraphSAGE

from laconic.errors import ConfigError
from laconic.graph import Shard
from laconic.records import CoverageRecord, read_records
from laconic.session.evaluate import Evaluation
from laconic.store import write_store
from laconic.trainer import resume, start

# Three epochs of a super-epoch: of nine, the first to the third are one.
WAYS = {
    "historical": "gradient_only(refresh_every=3, partitioner=random)",
    "ranks alike": "grappa(repartition_every=3, partitioner=random, combination=mean)",
    "storage": "grappa(repartition_every=3, partitioner=random, variable=1, correction=node)",
    "peers": "grappa(repartition_every=3, partitioner=random, variable=1, supply=peers)",
    "grouped anew": "grappa(repartition_every=1, partitioner=random, variable=2, chunks=5, "
    "rechunk_every=1, correction=batch)",
    "low rank": "gradient_only(refresh_every=3, partitioner=random, gradients=powersgd(rank=2))",
}


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.fixture
def model(request):
    """By default with running statistics, which each rank gathers on its own."""
    norm = getattr(request, "param", "batch_norm")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return GraphSAGE(8, 16, 3, 4, dropout=0.5, norm=norm).double()


@pytest.fixture
def carry_out(on_ranks, model):
    """Starts a run on so many ranks."""

    def carry_out(num_ranks, config, graph):
        def run(communicator):
            return start(config, graph=graph, model=copy.deepcopy(model), communicator=communicator)

        return on_ranks(num_ranks, run)

    return carry_out


@pytest.fixture
def take_up(on_ranks, model):
    """Resumes a run on so many ranks."""

    def take_up(num_ranks, folder, graph, layers=()):
        def run(communicator):
            return resume(folder, layers, graph=graph, model=copy.deepcopy(model), communicator=communicator)

        return on_ranks(num_ranks, run)

    return take_up


def check_cut_and_taken_up(tmp_path, graph, carry_out, take_up, monkeypatch, at_epoch, **training):
    carry_out(3, config_at(tmp_path / "whole", epochs=9, **training), graph)
    with monkeypatch.context() as patch:
        after_step(patch, 1, at_epoch, tell_to_end)
        summaries = carry_out(3, config_at(tmp_path / "cut", epochs=9, **training), graph)
    assert {summary.ending for summary in summaries} == {"interrupted"}
    assert checkpoint_in(tmp_path / "cut").epoch in (at_epoch - 1, at_epoch)
    take_up(3, tmp_path / "cut", graph)
    check_equal_runs(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("evaluate_every", [1, 5])
@pytest.mark.parametrize("at_epoch", [4, 6])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_cut_goes_on_bit_by_bit_within_a_super_epoch_and_at_its_end(
    tmp_path, graph, carry_out, take_up, monkeypatch, way, at_epoch, evaluate_every
):
    training = {"strategy": WAYS[way], "evaluate_every": evaluate_every}
    check_cut_and_taken_up(tmp_path, graph, carry_out, take_up, monkeypatch, at_epoch, **training)


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("model", [None], indirect=True)
def test_a_run_that_keeps_sums_goes_on_bit_by_bit(tmp_path, graph, carry_out, take_up, monkeypatch, turns):
    strategy = f"gradient_only(refresh_every=3, partitioner=random, keep=sums, turns={turns})"
    check_cut_and_taken_up(tmp_path, graph, carry_out, take_up, monkeypatch, 5, strategy=strategy, evaluate_every=5)


@pytest.mark.parametrize("way", ["historical", "storage"])
def test_a_run_that_was_cut_between_two_batches_goes_on_bit_by_bit(
    tmp_path, graph, carry_out, take_up, monkeypatch, way
):
    training = {"strategy": WAYS[way], "batch_size": 4, "fanouts": (3, 3, 3), "evaluate_every": 5}
    check_cut_and_taken_up(tmp_path, graph, carry_out, take_up, monkeypatch, 5, **training)


# What `config.json` of a run had before the split.
OLD_WAYS = {
    "historical": "gradient_only(repartition_every=3, partitioner=random)",
    "storage": "gradient_only(repartition_every=3, partitioner=random, remember=False, variable=1, correction=node)",
}


def write_strategy(folder, strategy):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["training"]["strategy"] = strategy
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("way", OLD_WAYS)
def test_a_run_of_an_old_spelling_goes_on_bit_by_bit_under_the_present_one(tmp_path, graph, carry_out, take_up, way):
    carry_out(2, config_at(tmp_path / "whole", strategy=WAYS[way], epochs=5), graph)
    carry_out(2, config_at(tmp_path / "cut", strategy=WAYS[way], epochs=2), graph)
    write_strategy(tmp_path / "cut", OLD_WAYS[way])
    take_up(2, tmp_path / "cut", graph, [{"training": {"epochs": 5}}])
    check_equal_runs(tmp_path / "whole", tmp_path / "cut")
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["training"]["strategy"] == WAYS[way]


def test_a_run_of_steps_apart_is_refused_with_the_reason(tmp_path, graph, carry_out, take_up):
    carry_out(1, config_at(tmp_path / "run", strategy="gradient_only", epochs=1), graph)
    write_strategy(tmp_path / "run", "gradient_only(sync_every=2)")
    with pytest.raises(ConfigError, match="Ranks no longer take steps apart"):
        take_up(1, tmp_path / "run", graph, [{"training": {"epochs": 2}}])


@pytest.mark.parametrize("way", ["historical", "storage"])
def test_a_run_may_end_a_super_epoch_on_another_number_of_ranks(tmp_path, graph, carry_out, take_up, way):
    """What is learned then is another matter, since ranks hold other rows; the run goes on and scores exactly."""
    write_store(graph, np.arange(60) % 4, tmp_path / "store")
    carry_out(4, config_at(tmp_path / "run", tmp_path / "store", strategy=WAYS[way], epochs=4), None)
    summaries = take_up(2, tmp_path / "run", None, [{"training": {"epochs": 9}}])
    assert [summary.num_epochs for summary in summaries] == [9, 9]
    assert len(epochs_in(tmp_path / "run")) == 9


def test_with_all_chunks_held_another_number_of_ranks_learns_the_same(tmp_path, graph, carry_out, take_up):
    """Up to rounding: chunks stay what they are, and every rank sees all of them."""
    write_store(graph, np.arange(60) % 3, tmp_path / "store")
    strategy = "grappa(variable=2, repartition_every=3)"
    carry_out(1, config_at(tmp_path / "whole", tmp_path / "store", strategy="single", epochs=8), None)
    carry_out(3, config_at(tmp_path / "cut", tmp_path / "store", strategy=strategy, epochs=4), None)
    take_up(1, tmp_path / "cut", None, [{"training": {"epochs": 8}}])
    check_same_result(tmp_path / "whole", tmp_path / "cut")


def test_ranks_with_other_statistics_save_those_of_all(tmp_path, graph, carry_out, monkeypatch):
    """The one checkpoint of a run that is cut before any evaluation, against the pooled statistics of its ranks."""
    own = {}

    def keep(run):
        norm = run.model.norms[0].module
        own[run.session.rank] = (norm.running_mean.clone(), len(run.session.shard.x))
        run.interrupts.signal = 15

    for rank in range(3):
        after_step(monkeypatch, rank, 2, keep)
    config = config_at(tmp_path / "run", strategy=WAYS["historical"], epochs=9, evaluate_every=9)
    carry_out(3, config, graph)
    means, counts = zip(*(own[rank] for rank in range(3)), strict=True)
    pooled = sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)
    saved = checkpoint_in(tmp_path / "run").model["norms.0.module.running_mean"]
    torch.testing.assert_close(saved, pooled, rtol=0, atol=1e-12)
    assert not torch.allclose(means[0], means[1])
    assert {row.operation for row in ledger_in(tmp_path / "run", ["forward", "backward"])} == set()


def test_coverage_is_told_in_every_super_epoch_and_where_a_run_is_taken_up(
    tmp_path, graph, carry_out, take_up, monkeypatch
):
    with monkeypatch.context() as patch:
        after_step(patch, 1, 4, tell_to_end)
        carry_out(3, config_at(tmp_path / "run", strategy=WAYS["storage"], epochs=9), graph)
    take_up(3, tmp_path / "run", graph)
    rows = read_records(tmp_path / "run" / "metrics.jsonl", CoverageRecord)
    assert [row.epoch for row in rows] == [1, 4, 5, 7]
    assert all(0 < row.mean < 1 and sum(row.histogram) == int(graph.train_mask.sum()) for row in rows)


def test_evaluation_is_exact_whatever_was_trained_on(tmp_path, graph, carry_out, model):
    carry_out(3, config_at(tmp_path / "run", strategy=WAYS["storage"], epochs=3), graph)
    alone = copy.deepcopy(model)
    alone.load_state_dict(checkpoint_in(tmp_path / "run").model)
    scores = Evaluation("accuracy", Shard.whole(graph))(alone, Shard.whole(graph))
    last = epochs_in(tmp_path / "run")[-1]
    assert scores == {"train": last.train, "val": last.val, "test": last.test}
