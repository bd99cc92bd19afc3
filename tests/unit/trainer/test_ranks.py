"""A run on several ranks, which are threads here: the run that one rank has, told by rank 0, ended by all together.

In float64: losses and weights to 1e-8 (Adam amplifies rounding), scores exactly.
"""

import copy
import dataclasses
import json
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.placing import start as start_worker
from torch_geometric.nn import GCN

from laconic.errors import ConfigError, RankFailedError
from laconic.records import EpochRecord, LedgerRecord, format_record, read_records
from laconic.store import write_store
from laconic.trainer import Config, DataConfig, RunConfig, TrainingConfig, loop, predict, resume, start
from laconic.trainer.checkpoint import Checkpoints

HALO = "exchange(partitioner=random, edges=destination, reach=0)"
# What a step and an evaluation cost; the rest is setting up and writing down.
WORK = ("forward", "backward", "gradients", "evaluation")


@pytest.fixture
def graph(make_graph):
    order = torch.randperm(60, generator=torch.Generator().manual_seed(4))
    return dataclasses.replace(make_graph(dtype=torch.float64), node_ids=10 * order + 7)


@pytest.fixture
def model():
    return make_model(8)


@pytest.fixture
def train(on_ranks):
    """Trains on so many ranks, each with a model of its own, and returns their summaries."""

    def train(num_ranks, config, graph, model):
        def run(communicator):
            return start(config, graph=graph, model=copy.deepcopy(model), communicator=communicator)

        return on_ranks(num_ranks, run)

    return train


@pytest.fixture
def go_on(on_ranks):
    """Resumes on so many ranks."""

    def go_on(num_ranks, folder, graph, model, layers=()):
        def run(communicator):
            return resume(folder, layers, graph=graph, model=copy.deepcopy(model), communicator=communicator)

        return on_ranks(num_ranks, run)

    return go_on


@pytest.fixture
def refusals(on_ranks):
    """Returns what each of two ranks was told by a ConfigError, given a configuration and a graph for each."""

    def refusals(configs, graphs, model):
        def refused(communicator):
            rank = communicator.rank
            with pytest.raises(ConfigError) as caught:
                start(configs[rank], graph=graphs[rank], model=copy.deepcopy(model), communicator=communicator)
            return str(caught.value)

        return on_ranks(2, refused)

    return refusals


def make_model(num_features):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return GCN(num_features, 16, 3, 4, dropout=0.5).double()


def config_at(folder, source="sbm", **training):
    return Config(
        data=DataConfig(source=str(source)),
        training=TrainingConfig(**{"strategy": HALO, "epochs": 6, "lr": 0.05, "evaluate_every": 1} | training),
        run=RunConfig(folder=str(folder), checkpoint_every=3, tensorboard=False, threads=1),
    )


def with_labels(graph):
    generator = torch.Generator().manual_seed(5)
    return dataclasses.replace(graph, y=(torch.rand(60, 4, generator=generator) < 0.4).float())


def epochs_in(folder):
    rows = read_records(folder / "metrics.jsonl", EpochRecord)
    return [dataclasses.replace(row, seconds=0, evaluate_seconds=0, wait_seconds=0, switch_seconds=0) for row in rows]


def ledger_in(folder, phases=None):
    rows = read_records(folder / "ledger.jsonl", LedgerRecord)
    return [row for row in rows if phases is None or row.phase in phases]


def checkpoint_in(folder, which="last"):
    return Checkpoints(folder / "checkpoints").load(which)


def check_same_result(one, many):
    for alone, shared in zip(epochs_in(one), epochs_in(many), strict=True):
        assert shared.loss == pytest.approx(alone.loss, rel=0, abs=1e-8)
        assert dataclasses.replace(shared, loss=0.0) == dataclasses.replace(alone, loss=0.0)
    for which in ("last", "best"):
        alone, shared = checkpoint_in(one, which), checkpoint_in(many, which)
        assert shared.epoch == alone.epoch
        for name, value in alone.model.items():
            torch.testing.assert_close(shared.model[name], value, rtol=0, atol=1e-8, msg=name)


def check_same_predictions(alone, shared):
    order = alone.node_ids.argsort()
    assert np.array_equal(shared.node_ids, alone.node_ids[order])
    assert np.array_equal(shared.classes, alone.classes[order])
    # They are float32.
    np.testing.assert_allclose(shared.probabilities, alone.probabilities[order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize(
    ("metric", "has_labels"), [("accuracy", False), ("micro_f1", True), ("roc_auc", False), ("roc_auc", True)]
)
def test_ranks_learn_score_and_predict_what_one_rank_does(
    tmp_path, graph, model, train, on_ranks, num_ranks, metric, has_labels
):
    graph = with_labels(graph) if has_labels else graph
    start(config_at(tmp_path / "one", metric=metric, strategy="single"), graph=graph, model=copy.deepcopy(model))
    train(num_ranks, config_at(tmp_path / "many", metric=metric), graph, model)
    check_same_result(tmp_path / "one", tmp_path / "many")

    def predictions(communicator=None):
        return predict(tmp_path / "many", graph=graph, model=copy.deepcopy(model), communicator=communicator)

    first, *others = on_ranks(num_ranks, predictions)
    check_same_predictions(predictions(), first)
    assert [len(other.node_ids) for other in others] == [0] * (num_ranks - 1)


def test_ranks_that_read_their_chunks_of_a_store_prepare_features_as_one_rank_does(tmp_path, make_graph, train):
    # Bags of words and few training nodes for them: by default each row is divided by its sum.
    graph = make_graph(num_features=128, dtype=torch.float64)
    graph = dataclasses.replace(graph, x=(graph.x > 1.2).double())
    write_store(graph, np.arange(60) % 3, tmp_path / "store", reorder="rcm")
    model = make_model(128)
    start(config_at(tmp_path / "one", tmp_path / "store", strategy="single"), model=copy.deepcopy(model))
    train(2, config_at(tmp_path / "many", tmp_path / "store"), None, model)
    check_same_result(tmp_path / "one", tmp_path / "many")
    assert checkpoint_in(tmp_path / "many").notes["inputs"]["normalise_features"] == "row"


def test_rank_0_alone_leaves_a_run_folder(tmp_path, graph, model, train, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summaries = train(3, config_at(""), graph, model)
    assert [str(path) for path in Path().glob("runs/*")] == ["runs/random-GCN-001"]
    assert [summary.folder for summary in summaries] == [Path("runs/random-GCN-001"), Path(), Path()]
    assert [summary.num_ranks for summary in summaries] == [3, 3, 3]


def test_the_summary_tells_what_all_ranks_received_by_what_it_was_for(tmp_path, graph, model, train):
    summary, other = train(2, config_at(tmp_path / "run", evaluate_every=2), graph, model)
    received = [row for row in ledger_in(tmp_path / "run", WORK) if row.direction == "received"]
    assert summary.bytes_per_epoch == round(sum(row.num_bytes for row in received) / 6) > 0
    for purpose, phases in {"rows": ("forward", "backward"), "gradients": ("gradients",)}.items():
        counted = sum(row.num_bytes for row in received if row.phase in phases)
        assert summary.traffic.received[purpose] == counted > 0
    assert (summary.num_epochs, summary.num_evaluations) == (6, 3)
    # Rank 0 keeps the ledger.
    assert (other.bytes_per_epoch, other.traffic) == (None, None)
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert kept["traffic"]["received"] == summary.traffic.received


@pytest.mark.parametrize(
    ("strategy", "phases"), [(HALO, WORK), ("exchange(partitioner=random)", ("forward", "gradients"))]
)
def test_the_ledger_holds_what_was_predicted_for_every_rank_and_epoch(
    tmp_path, graph, model, train, on_ranks, strategy, phases
):
    copies = [copy.deepcopy(model) for _ in range(3)]

    def predicted_rows(communicator):
        rows = start_worker(strategy, graph, copies[communicator.rank], communicator).predict_traffic()
        return [row for row in rows if row.epoch == 1]

    train(3, config_at(tmp_path / "run", strategy=strategy), graph, model)
    counted = ledger_in(tmp_path / "run")
    # Epoch 0 is what it took to come together.
    assert {(row.rank, row.epoch) for row in counted} == {(rank, epoch) for rank in range(3) for epoch in range(7)}
    for rank, predicted in enumerate(on_ranks(3, predicted_rows)):
        assert {row.phase for row in predicted} == set(phases)
        for epoch in range(1, 7):
            expected = [dataclasses.replace(row, epoch=epoch) for row in predicted]
            found = [row for row in counted if (row.rank, row.epoch) == (rank, epoch) and row.phase in WORK]
            # Beyond it, only the adding up of scores.
            assert [row for row in found if row.phase != "evaluation" or row.layer >= 0] == expected
            assert {row.operation for row in found if row not in expected} == {"all_reduce"}


def test_what_all_ranks_sent_was_received(tmp_path, graph, model, train):
    train(3, config_at(tmp_path / "run", metric="roc_auc"), graph, model)
    for phase in ("setup", *WORK, "records"):
        rows = ledger_in(tmp_path / "run", [phase])
        sent, received = (
            sum(row.num_bytes for row in rows if row.direction == direction) for direction in ("sent", "received")
        )
        assert sent == received > 0, phase


def test_ranks_stop_early_together_and_agree_on_the_best_epoch(tmp_path, graph, model, train):
    settings = {"epochs": 100, "patience": 6}
    one = start(config_at(tmp_path / "one", strategy="single", **settings), graph=graph, model=copy.deepcopy(model))
    many = train(3, config_at(tmp_path / "many", **settings), graph, model)
    assert one.best is not None
    assert one.ending == "stopped early"
    for summary in many:
        assert (summary.ending, summary.num_epochs) == (one.ending, one.num_epochs)
        assert (summary.best.epoch, summary.best.val) == (one.best.epoch, one.best.val)
    check_same_result(tmp_path / "one", tmp_path / "many")


def after_step(monkeypatch, rank, epoch, act):
    """Has `act(run)` called after the step of one rank in one epoch."""
    plain = loop.train_step

    def step(run, batch):
        loss = plain(run, batch)
        if (run.session.rank, run.state.epoch + 1) == (rank, epoch):
            act(run)
        return loss

    monkeypatch.setattr(loop, "train_step", step)


def tell_to_end(run):
    run.interrupts.signal = signal.SIGTERM


def fail(run):
    raise ZeroDivisionError("the disk is full")


def work_in(folder):
    """Messages and bytes by place; an epoch that was cut has rows from before the cut and from after it."""
    counted = Counter()
    for row in ledger_in(folder, WORK):
        place = (row.epoch, row.rank, row.phase, row.layer, row.operation, row.direction)
        counted[*place, "messages"] += row.num_messages
        counted[*place, "bytes"] += row.num_bytes
    return counted


def check_equal_runs(whole, cut):
    """Rows, bytes and weights are the same."""
    assert epochs_in(cut) == epochs_in(whole)
    assert work_in(cut) == work_in(whole)
    for which in ("last", "best"):
        expected, found = checkpoint_in(whole, which), checkpoint_in(cut, which)
        assert found.epoch == expected.epoch
        assert all(torch.equal(found.model[name], value) for name, value in expected.model.items())
    expected, found = checkpoint_in(whole).training, checkpoint_in(cut).training
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_signal_to_one_rank_ends_all_at_the_same_epoch_and_they_go_on_bit_by_bit(
    tmp_path, graph, model, train, go_on, monkeypatch, num_ranks
):
    train(num_ranks, config_at(tmp_path / "whole", epochs=9), graph, model)
    with monkeypatch.context() as patch:
        after_step(patch, num_ranks - 1, 4, tell_to_end)
        summaries = train(num_ranks, config_at(tmp_path / "cut", epochs=9), graph, model)
    ends = [(summary.ending, summary.num_epochs, summary.signal) for summary in summaries]
    assert ends == [("interrupted", 4, signal.SIGTERM)] * num_ranks
    assert checkpoint_in(tmp_path / "cut").epoch == 4
    continued = go_on(num_ranks, tmp_path / "cut", graph, model)
    assert [(summary.ending, summary.num_epochs) for summary in continued] == [("finished", 9)] * num_ranks
    check_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_rank_that_fails_ends_the_others_and_names_itself(tmp_path, graph, model, on_ranks, monkeypatch):
    told = {}

    def run(communicator):
        try:
            start(config_at(tmp_path / "run"), graph=graph, model=copy.deepcopy(model), communicator=communicator)
        except RankFailedError as error:
            told[communicator.rank] = (error.rank, str(error))
            raise

    after_step(monkeypatch, 1, 4, fail)
    with pytest.raises(ZeroDivisionError):
        on_ranks(3, run)
    assert told == dict.fromkeys((0, 2), (1, "Rank 1 failed: ZeroDivisionError: the disk is full"))
    assert checkpoint_in(tmp_path / "run").epoch == 3


def test_rows_after_the_last_checkpoint_are_cut_and_written_anew(tmp_path, graph, model, train, go_on, monkeypatch):
    train(2, config_at(tmp_path / "whole", epochs=9), graph, model)
    with monkeypatch.context() as patch:
        after_step(patch, 1, 9, fail)
        with pytest.raises(ZeroDivisionError):
            train(2, config_at(tmp_path / "cut", epochs=9), graph, model)
    assert (checkpoint_in(tmp_path / "cut").epoch, len(epochs_in(tmp_path / "cut"))) == (6, 8)
    # As after a crash between the rows and their checkpoint.
    with (tmp_path / "cut" / "ledger.jsonl").open("a") as file:
        later = dataclasses.replace(ledger_in(tmp_path / "cut", WORK)[-1], epoch=8)
        file.write(f'{format_record(later)}\n{{"kind": "led')
    go_on(2, tmp_path / "cut", graph, model)
    check_equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_of_ranks_may_go_on_for_more_epochs(tmp_path, graph, model, train, go_on):
    train(2, config_at(tmp_path / "long", epochs=9), graph, model)
    train(2, config_at(tmp_path / "grown", epochs=6), graph, model)
    go_on(2, tmp_path / "grown", graph, model, [{"training": {"epochs": 9}}])
    check_equal_runs(tmp_path / "long", tmp_path / "grown")


@pytest.mark.parametrize("from_store", [False, True])
@pytest.mark.parametrize(("num_before", "num_after"), [(1, 2), (2, 1), (2, 3)])
def test_a_run_goes_on_on_another_number_of_ranks(
    tmp_path, graph, model, train, go_on, num_before, num_after, from_store
):
    source = graph
    if from_store:
        write_store(graph, np.arange(60) % 3, tmp_path / "store")
        source = None
    settings = {"source": tmp_path / "store"} if from_store else {}
    strategy = "single" if num_before == 1 else HALO
    start(
        config_at(tmp_path / "whole", strategy="single", epochs=9, **settings),
        graph=source,
        model=copy.deepcopy(model),
    )
    train(num_before, config_at(tmp_path / "cut", strategy=strategy, epochs=4, **settings), source, model)
    go_on(num_after, tmp_path / "cut", source, model, [{"training": {"epochs": 9}}])
    check_same_result(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"batch_size": 8}, f"training.batch_size is 8, but the strategy {HALO} trains on the whole graph"),
        ({"strategy": "single"}, "The strategy single is for one rank, but there are 2. Use the strategy exchange"),
    ],
)
def test_what_ranks_cannot_do_is_refused_by_all_of_them(tmp_path, graph, model, refusals, training, words):
    config = config_at(tmp_path / "run", **training)
    for message in refusals([config] * 2, [graph] * 2, model):
        assert words in message
    assert not (tmp_path / "run").exists()


def test_all_ranks_hear_which_setting_differs(tmp_path, graph, model, refusals):
    configs = [config_at(tmp_path / "run", lr=0.05), config_at(tmp_path / "run", lr=0.5)]
    for message in refusals(configs, [graph] * 2, model):
        assert "training.lr is 0.05 on rank 0 and 0.5 on rank 1" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("other", "named"), [({"num_edges": 301}, "num_edges is 300"), ({"seed": 9}, "checksum is")])
def test_all_ranks_hear_that_their_graphs_differ(tmp_path, graph, model, make_graph, refusals, other, named):
    graphs = [graph, make_graph(dtype=torch.float64, **other)]
    for message in refusals([config_at(tmp_path / "run")] * 2, graphs, model):
        assert f"data.{named}" in message
    assert not (tmp_path / "run").exists()
