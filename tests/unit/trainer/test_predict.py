import csv
import dataclasses

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCN

from laconic.datasets import load
from laconic.errors import CheckpointError, ConfigError, DataError
from laconic.models import parse_model
from laconic.session import join
from laconic.store import write_store
from laconic.trainer import Config, DataConfig, RunConfig, TrainingConfig, predict, start, write_predictions
from laconic.trainer.checkpoint import Checkpoints


@pytest.fixture
def graph(small_graph):
    return dataclasses.replace(small_graph, node_ids=torch.arange(60) * 10 + 7)


@pytest.fixture
def run(tmp_path, graph):
    config = Config(
        model=parse_model("gcn(hidden=8)"),
        training=TrainingConfig(epochs=8, lr=0.05, evaluate_every=1),
        run=RunConfig(folder=str(tmp_path / "run"), tensorboard=False, threads=1),
    )
    return start(config, graph=graph)


@pytest.fixture
def labelled_run(tmp_path, graph):
    y = (torch.rand(60, 3, generator=torch.Generator().manual_seed(1)) < 0.4).float()
    graph = dataclasses.replace(graph, y=y, num_classes=3)
    config = Config(
        model=parse_model("mlp(hidden=8)"),
        training=TrainingConfig(epochs=3),
        run=RunConfig(folder=str(tmp_path / "labels"), tensorboard=False, threads=1),
    )
    return start(config, graph=graph), graph


@pytest.mark.parametrize("which", ["best", "last"])
def test_predictions_are_those_of_the_plain_model_with_the_saved_weights(run, graph, which):
    predictions = predict(run.folder, graph=graph, which=which)
    snapshot = Checkpoints(run.folder / "checkpoints").load(which)
    model = GCN(8, 8, 2, 4).eval()
    model.load_state_dict(dict(snapshot.model))
    chance = model(graph.x, graph.edge_index).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(predictions.probabilities, chance, atol=1e-6)
    assert np.array_equal(predictions.classes, chance.argmax(axis=1))
    assert predictions.epoch == snapshot.epoch
    assert np.array_equal(predictions.node_ids, graph.node_ids.numpy())


def test_a_model_that_draws_from_torch_predicts_the_same_each_time_and_torchs_state_is_put_back(tmp_path, graph):
    class Noisy(GCN):
        def forward(self, x, edge_index):
            return super().forward(x * torch.rand(1), edge_index)

    config = Config(training=TrainingConfig(epochs=1), run=RunConfig(folder=str(tmp_path / "run"), tensorboard=False))
    start(config, graph=graph, model=Noisy(8, 8, 2, 4))
    seen = []
    for number in range(2):
        torch.manual_seed(number)
        model, before = Noisy(8, 8, 2, 4), torch.get_rng_state()
        seen.append(predict(tmp_path / "run", graph=graph, model=model).probabilities)
        assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(*seen)


def test_the_best_epochs_scores_are_those_of_its_predictions(run, graph):
    right = predict(run.folder, graph=graph).classes == graph.y.numpy()
    assert run.best.test == pytest.approx(right[graph.test_mask.numpy()].mean(), abs=1e-6)


def test_an_npz_gives_everything_back(run, graph, tmp_path):
    predictions = predict(run.folder, graph=graph)
    write_predictions(predictions, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert sorted(arrays) == ["classes", "node_ids", "probabilities"]
        assert np.array_equal(arrays["classes"], predictions.classes)
        assert np.array_equal(arrays["probabilities"], predictions.probabilities)


def test_a_csv_has_a_row_per_node_under_its_own_id(run, graph, tmp_path):
    predictions = predict(run.folder, graph=graph)
    write_predictions(predictions, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["node_id"]) for row in rows] == graph.node_ids.tolist()
    assert [int(row["class"]) for row in rows] == predictions.classes.tolist()
    chances = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(chances, predictions.probabilities.max(axis=1), atol=1e-6)


def test_labels_are_written_one_column_each(labelled_run, tmp_path):
    summary, graph = labelled_run
    predictions = predict(summary.folder, graph=graph)
    assert predictions.is_multilabel
    assert np.array_equal(predictions.classes, predictions.probabilities > 0.5)
    write_predictions(predictions, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        header, first, *rest = list(csv.reader(file))
    assert header == ["node_id", "label_0", "label_1", "label_2"]
    assert [int(value) for value in first] == [7, *predictions.classes[0]]
    assert len(rest) == 59


def test_features_are_prepared_as_in_training_whatever_they_look_like(tmp_path, graph):
    sparse = dataclasses.replace(graph, x=(graph.x > 1).float())
    config = Config(
        data=DataConfig(normalise_features="row"),
        model=parse_model("gcn(hidden=8)"),
        training=TrainingConfig(epochs=3),
        run=RunConfig(folder=str(tmp_path / "sparse"), tensorboard=False, threads=1),
    )
    start(config, graph=sparse)
    dense = dataclasses.replace(graph, x=sparse.x + 0.01)
    divided = dataclasses.replace(dense, x=dense.x / dense.x.sum(dim=1, keepdim=True))
    one, other = (predict(tmp_path / "sparse", graph=g).probabilities for g in (dense, divided))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_another_graph_may_lack_a_class(run, graph):
    fewer = dataclasses.replace(graph, y=graph.y.clamp(max=2), num_classes=3)
    assert predict(run.folder, graph=fewer).probabilities.shape == (60, 4)


def test_a_graph_of_another_kind_is_refused_by_what_differs(run, graph, make_graph):
    with pytest.raises(DataError, match=r"num_features is 5, but .*run was trained with 8"):
        predict(run.folder, graph=make_graph(num_features=5))
    with pytest.raises(DataError, match="9 classes"):
        predict(run.folder, graph=dataclasses.replace(graph, num_classes=9))
    labels = torch.nn.functional.one_hot(graph.y, 4).float()
    with pytest.raises(DataError, match="is_multilabel is True"):
        predict(run.folder, graph=dataclasses.replace(graph, y=labels))


def test_a_harmed_checkpoint_gives_no_predictions(run, graph):
    for path in run.folder.glob("checkpoints/epoch_*/model.safetensors"):
        path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        predict(run.folder, graph=graph)


@pytest.mark.parametrize(
    ("name", "message"), [("out.txt", r"\.npz or \.csv"), ("absent/out.csv", "does not exist"), ("out", r"\.npz")]
)
def test_an_output_that_cannot_be_written_is_refused(run, graph, tmp_path, name, message):
    predictions = predict(run.folder, graph=graph)
    with pytest.raises(ConfigError, match=message):
        write_predictions(predictions, tmp_path / name)


def test_a_write_that_fails_leaves_the_old_file(run, graph, tmp_path, monkeypatch):
    def fail(*arguments, **named):
        raise OSError(28, "No space left on device")

    predictions = predict(run.folder, graph=graph)
    (tmp_path / "out.npz").write_text("old")
    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/out\.npz cannot be written: No space left on device\."):
        write_predictions(predictions, tmp_path / "out.npz")
    assert (tmp_path / "out.npz").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "run"]


@pytest.fixture
def bare_file(tmp_path, graph):
    """The graph in a file that has neither labels nor masks."""
    path = tmp_path / "bare.npz"
    np.savez(path, edge_index=graph.edge_index.numpy(), x=graph.x.numpy(), node_ids=graph.node_ids.numpy())
    return path


@pytest.fixture
def bare_tables(tmp_path, graph):
    folder = tmp_path / "tables"
    folder.mkdir()
    np.save(folder / "edges.npy", graph.node_ids[graph.edge_index].numpy())
    np.save(folder / "features.npy", graph.x.numpy())
    np.save(folder / "nodes.npy", graph.node_ids.numpy())
    return folder


@pytest.mark.parametrize("source", ["bare_file", "bare_tables"])
def test_a_graph_without_labels_and_masks_gets_the_same_predictions(run, graph, source, request, on_ranks):
    bare = str(request.getfixturevalue(source))
    expected = predict(run.folder, graph=graph)
    alone = predict(run.folder, source=bare)
    assert np.array_equal(alone.probabilities, expected.probabilities)
    assert np.array_equal(alone.node_ids, expected.node_ids)
    shared = on_ranks(2, lambda communicator: predict(run.folder, source=bare, communicator=communicator))[0]
    np.testing.assert_allclose(shared.probabilities, expected.probabilities, rtol=0, atol=1e-6)


def test_a_store_of_a_graph_without_labels_is_predicted_for_too(run, graph, bare_file, tmp_path, on_ranks):
    write_store(load(bare_file, labelled=False), np.arange(60) % 2, tmp_path / "store")
    store, expected = str(tmp_path / "store"), predict(run.folder, graph=graph)
    shared = on_ranks(2, lambda communicator: predict(run.folder, source=store, communicator=communicator))[0]
    np.testing.assert_allclose(shared.probabilities, expected.probabilities, rtol=0, atol=1e-6)


def test_of_several_labels_the_run_knows_where_the_graph_does_not(labelled_run, bare_file):
    summary, graph = labelled_run
    expected = predict(summary.folder, graph=graph)
    bare = predict(summary.folder, source=str(bare_file))
    assert bare.is_multilabel
    assert np.array_equal(bare.classes, expected.classes)


def test_nobody_trains_on_a_graph_without_labels(run, bare_file, tmp_path):
    config = Config(
        data=DataConfig(f"{bare_file}(labelled=False)"), run=RunConfig(folder=str(tmp_path / "new"), tensorboard=False)
    )
    with pytest.raises(DataError, match=r"bare: there is no training node.*predict --data"):
        start(config)
    with pytest.raises(DataError, match="no array 'y'"):
        start(dataclasses.replace(config, data=DataConfig(str(bare_file))))
    with pytest.raises(DataError, match="there is no training node"):
        join(load(bare_file, labelled=False)).attach(GCN(8, 8, 2, 4))
    assert not (tmp_path / "new").exists()
