"""What is refused before ranks are started."""

import numpy as np
import pytest

from laconic.datasets import load
from laconic.errors import CheckpointError, ConfigError, DataError, LaconicError
from laconic.store import write_store
from laconic.trainer import Config, DataConfig, RunConfig, TrainingConfig, start
from laconic.trainer.early_checks import check_predict, check_resume, check_start

SBM = "sbm(nodes=60)"


def layer(source=SBM, **training):
    return {"data": {"source": str(source)}, "training": {"strategy": "exchange", **training}}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    graph, folder = load(SBM), tmp_path_factory.mktemp("data") / "store"
    write_store(graph, np.arange(graph.num_nodes) % 3, folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    training = TrainingConfig(epochs=1)
    start(Config(DataConfig(SBM), training=training, run=RunConfig(folder=str(folder), tensorboard=False)))
    return folder


def test_what_can_be_trained_passes_and_writes_nothing(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_start([layer()], 8)
    check_start([layer(store)], 3)
    check_start([layer(strategy="auto")], 2)
    check_start([layer(strategy="gradient_only", batch_size=8, fanouts=[5, 5])], 2)
    check_start([layer(strategy="single", batch_size=8)], 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({**layer(), "model": {"name": "gnc"}}, ConfigError, "Did you mean 'gcn'"),
        (layer(strategy="halo"), ConfigError, "Unknown strategy 'halo'"),
        (layer(strategy="exchange(codec='x')"), ConfigError, "[Uu]nknown codec"),
        (layer("not/there.npz"), DataError, "no such file or folder"),
        (layer("sbn"), ConfigError, "Did you mean 'sbm'"),
        ({**layer(), "run": {"folder": "."}}, CheckpointError, "exists already"),
        (layer(strategy="single"), ConfigError, "single is for one rank, but there are 2. Use the strategy exchange"),
        (layer(strategy="full_graph(grid='1.5d(c=4)')"), ConfigError, "4"),
        (layer(batch_size=8), ConfigError, "exchange trains on the whole graph"),
        (layer(strategy="auto", batch_size=8), ConfigError, "exchange trains on the whole graph"),
        (layer(strategy="gradient_only", batch_size=8, fanouts=[5]), ConfigError, "one number per hop of the model, 2"),
        (layer(strategy="gradient_only", fanouts=[5, 5]), ConfigError, "nothing is drawn"),
        (layer(strategy="gradient_only(keep=sums)", batch_size=8), ConfigError, "without keep=sums, turns and reach"),
    ],
)
def test_settings_that_no_rank_would_take_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        check_start([given], 2)


def test_more_ranks_than_the_store_has_chunks_are_refused(store, run, tmp_path):
    with pytest.raises(ConfigError, match="has 3 chunks, and each of the 4 ranks needs one"):
        check_start([layer(store)], 4)
    with pytest.raises(ConfigError, match="has 3 chunks, and each of the 4 ranks needs one"):
        check_predict(run, tmp_path / "out.npz", source=str(store), which="best", num_ranks=4)


def test_a_run_that_can_go_on_passes_and_one_that_cannot_is_refused(run, tmp_path):
    check_resume(run, [], 2)
    with pytest.raises(ConfigError, match=r"training\.lr"):
        check_resume(run, [{"training": {"lr": 0.5}}], 2)
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        check_resume(tmp_path, [], 2)


def test_a_run_in_batches_on_one_rank_is_refused_on_several_which_take_the_whole_graph(tmp_path):
    training = TrainingConfig(epochs=1, batch_size=8)
    start(Config(DataConfig(SBM), training=training, run=RunConfig(folder=str(tmp_path / "run"), tensorboard=False)))
    check_resume(tmp_path / "run", [], 1)
    with pytest.raises(ConfigError, match="exchange trains on the whole graph"):
        check_resume(tmp_path / "run", [], 2)


def test_predictions_that_cannot_be_made_or_written_are_refused(run, tmp_path):
    check_predict(run, tmp_path / "out.npz", source=None, which="best", num_ranks=2)
    for path, out, source in (
        (tmp_path, "out.npz", None),
        (run, "out.txt", None),
        (run, "out.npz", "not/there.npz"),
    ):
        with pytest.raises(LaconicError):
            check_predict(path, tmp_path / out, source=source, which="best", num_ranks=2)
