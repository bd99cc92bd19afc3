"""Ids and labels that are text, from the data through a run to its predictions; and undirected graphs."""

import csv
import dataclasses
import json

import numpy as np
import pytest
import torch

from laconic.datasets import save_npz
from laconic.errors import CheckpointError, ConfigError
from laconic.graph import GraphChange, NewNodes
from laconic.models import build_model, parse_model
from laconic.session import join
from laconic.session.data import describe_data, describe_split, load_graph
from laconic.session.predictions import Predictions
from laconic.store import open_store, write_store
from laconic.trainer import Config, DataConfig, RunConfig, TrainingConfig, predict, resume, start, write_predictions
from laconic.trainer.early_checks import check_start

NAMES = np.array([f"person {(7 * row) % 60}" for row in range(60)])
CLASSES = ("cat", "dog", "eel", "fox")


@pytest.fixture
def graph(small_graph):
    return dataclasses.replace(small_graph, id_names=NAMES, class_names=CLASSES)


def config_at(folder, source="sbm", epochs=2, **data):
    return Config(
        data=DataConfig(source=str(source), **data),
        model=parse_model("gcn(hidden=8)"),
        training=TrainingConfig(epochs=epochs),
        run=RunConfig(folder=str(folder), tensorboard=False, threads=1),
    )


@pytest.mark.parametrize("num_parts", [3, 5])
def test_text_comes_back_alike_from_one_rank_and_from_ranks_that_read_their_own_chunks(
    tmp_path, graph, on_ranks, num_parts
):
    parts = np.random.default_rng(1).integers(num_parts, size=60)
    write_store(graph, parts, tmp_path / "store", num_parts=num_parts, reorder="rcm")
    start(config_at(tmp_path / "run", tmp_path / "store"))
    alone = predict(tmp_path / "run")
    plain = predict(tmp_path / "run", graph=graph)
    assert plain.node_ids.tolist() == NAMES.tolist()
    assert plain.class_names == CLASSES
    class_of = dict(zip(plain.node_ids.tolist(), plain.classes.tolist(), strict=True))
    assert dict(zip(alone.node_ids.tolist(), alone.classes.tolist(), strict=True)) == class_of
    for source in ({}, {"graph": graph}):
        first, *others = on_ranks(
            3, lambda communicator, given=source: predict(tmp_path / "run", communicator=communicator, **given)
        )
        # In the order of the data.
        assert first.node_ids.tolist() == NAMES.tolist()
        assert first.classes.tolist() == plain.classes.tolist()
        assert first.class_names == CLASSES
        assert [len(other.node_ids) for other in others] == [0, 0]


def test_files_of_predictions_hold_the_texts(tmp_path, graph):
    start(config_at(tmp_path / "run"), graph=graph)
    predictions = predict(tmp_path / "run", graph=graph)
    write_predictions(predictions, tmp_path / "out.csv")
    write_predictions(predictions, tmp_path / "out.npz")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["node_id"] for row in rows] == NAMES.tolist()
    assert [row["class"] for row in rows] == [CLASSES[number] for number in predictions.classes]
    with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert arrays["node_ids"].tolist() == NAMES.tolist()
        assert arrays["class_names"].tolist() == list(CLASSES)
        assert np.array_equal(arrays["classes"], predictions.classes)


def test_a_class_without_a_name_is_written_as_its_number(tmp_path):
    """As of a model whose last layer is wider than there are classes."""
    classes = np.array([1, 5])
    predictions = Predictions(NAMES[:2], classes, np.full((2, 6), 1 / 6, np.float32), 1, CLASSES)
    write_predictions(predictions, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        assert [row["class"] for row in csv.DictReader(file)] == ["dog", "5"]


@pytest.mark.parametrize("kind", ["graph", "store"])
@pytest.mark.parametrize("added", [60, 5000])
def test_nodes_that_were_added_go_by_their_numbers(tmp_path, graph, on_ranks, kind, added):
    graph = dataclasses.replace(graph, node_ids=torch.arange(60) * 10)
    # Numbers between those that are known, and above them.
    added = torch.tensor([added + 1, added + 2])
    change = GraphChange(
        add_edges=torch.stack([added, added.flip(0)]), add_nodes=NewNodes(added, torch.zeros(2, graph.num_features))
    )
    if kind == "store":
        write_store(graph, np.arange(60) % 2, tmp_path / "store")
    data = graph if kind == "graph" else str(tmp_path / "store")

    def work(communicator):
        session = join(data, strategy="exchange", communicator=communicator)
        model = build_model(parse_model("gcn(hidden=8)"), num_features=8, num_classes=4, seed=0)
        session.attach(model)
        before = session.predict()
        session.change(change)
        return before, session.predict()

    (before, after), _ = on_ranks(2, work)
    assert before.node_ids.tolist() == NAMES.tolist()
    names = dict(zip(range(0, 600, 10), NAMES.tolist(), strict=True)) | {int(each): str(int(each)) for each in added}
    assert after.node_ids.tolist() == [names[number] for number in sorted(names)]


def test_several_labels_are_written_under_their_names(tmp_path, graph):
    y = (np.arange(240).reshape(60, 4) % 3 == 0).astype(np.float32)
    graph = dataclasses.replace(graph, y=graph.x.new_tensor(y))
    start(config_at(tmp_path / "run"), graph=graph)
    write_predictions(predict(tmp_path / "run", graph=graph), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "node_id,cat,dog,eel,fox"


def test_classes_have_the_names_that_the_model_was_trained_with(tmp_path, graph, small_graph):
    start(config_at(tmp_path / "run"), graph=graph)
    other = dataclasses.replace(small_graph, class_names=("some", "other", "class", "names"))
    assert predict(tmp_path / "run", graph=other).class_names == CLASSES
    save_npz(small_graph, tmp_path / "other.npz")
    assert predict(tmp_path / "run", source=str(tmp_path / "other.npz")).class_names == CLASSES


def test_a_run_is_not_continued_on_classes_of_other_names(tmp_path, graph):
    start(config_at(tmp_path / "run"), graph=graph)
    renamed = dataclasses.replace(graph, class_names=("cat", "dog", "eel", "gnu"))
    with pytest.raises(CheckpointError, match=r"class_names: \['cat', 'dog', 'eel', 'fox'\] -> .*'gnu'"):
        resume(tmp_path / "run", [{"training": {"epochs": 4}}], graph=renamed)
    with pytest.raises(CheckpointError, match="checksum"):
        resume(tmp_path / "run", graph=dataclasses.replace(graph, id_names=NAMES[::-1].copy()))
    assert resume(tmp_path / "run", [{"training": {"epochs": 3}}], graph=graph).num_epochs == 3


def test_a_run_that_knows_no_class_names_goes_on(tmp_path, small_graph):
    """As checkpoints of an older version, whose notes have no such entry."""
    assert describe_data(small_graph)["class_names"] is None


def test_the_split_is_described_for_graphs_and_stores(tmp_path, graph):
    assert describe_split(graph) == "30 train, 15 val, 15 test (given)"
    random = dataclasses.replace(graph, split_origin="random, seed 0")
    manifest = write_store(random, np.arange(60) % 2, tmp_path / "store")
    assert describe_split(manifest) == "30 train, 15 val, 15 test (random, seed 0)"
    old = dataclasses.replace(manifest, provenance={})
    assert describe_split(old) == "30 train"


def test_the_line_about_the_data_shows_the_split(tmp_path, graph, caplog):
    with caplog.at_level("INFO"):
        start(config_at(tmp_path / "run"), graph=graph)
    assert "4 classes. Split: 30 train, 15 val, 15 test (given)." in caplog.text


def test_an_undirected_run_stays_so_when_it_predicts(tmp_path, graph):
    save_npz(graph, tmp_path / "graph.npz")
    source = str(tmp_path / "graph.npz")
    start(config_at(tmp_path / "run", source, undirected=True))
    both = load_graph(source, undirected=True)
    assert both.num_edges > graph.num_edges
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["undirected"] is True
    expected = predict(tmp_path / "run", graph=both).probabilities
    assert np.array_equal(predict(tmp_path / "run").probabilities, expected)
    other = predict(tmp_path / "run", source=source)
    assert np.array_equal(other.probabilities, expected)
    assert other.node_ids.tolist() == NAMES.tolist()
    # The edges of a store are what they are: one of both directions is as good.
    write_store(both, np.zeros(60, np.int32), tmp_path / "store")
    assert np.array_equal(predict(tmp_path / "run", source=str(tmp_path / "store")).probabilities, expected)


def test_a_graph_that_is_given_is_not_made_undirected(tmp_path, graph):
    with pytest.raises(ConfigError, match=r"data\.undirected is for data that is loaded.*add_reverse_edges=True"):
        start(config_at(tmp_path / "run", undirected=True), graph=graph)
    assert not (tmp_path / "run").exists()


def test_a_run_on_an_undirected_store_warns_of_other_data_without_reverse_edges(tmp_path, graph, caplog):
    save_npz(graph, tmp_path / "graph.npz")
    source = str(tmp_path / "graph.npz")
    both = load_graph(source, undirected=True)
    write_store(both, np.zeros(60, np.int32), tmp_path / "store", provenance={"undirected": "true"})
    start(config_at(tmp_path / "run", tmp_path / "store"))
    expected = predict(tmp_path / "run")
    spec = f"{source}(add_reverse_edges=True)"
    np.testing.assert_allclose(
        predict(tmp_path / "run", source=spec).probabilities, expected.probabilities, rtol=0, atol=1e-6
    )
    predict(tmp_path / "run", source=str(tmp_path / "store"))
    assert "reverse" not in caplog.text
    predict(tmp_path / "run", source=source)
    assert f'give "{spec}"' in caplog.text
    predict(tmp_path / "run", source=f"{source}(dtype='float32')")
    assert f"give \"{source}(dtype='float32', add_reverse_edges=True)\"" in caplog.text


def test_a_store_is_not_made_undirected(tmp_path, graph):
    write_store(graph, np.zeros(60, np.int32), tmp_path / "store")
    with pytest.raises(ConfigError, match=r"store is a store.*laconic partition DATA .*--undirected"):
        start(config_at(tmp_path / "run", tmp_path / "store", undirected=True))
    with pytest.raises(ConfigError, match="store is a store"):
        check_start([{"data": {"source": str(tmp_path / "store"), "undirected": True}}], 2)
    assert open_store(tmp_path / "store").manifest.num_edges == graph.num_edges
