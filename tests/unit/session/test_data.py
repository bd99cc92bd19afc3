import dataclasses

import numpy as np
import pytest
import torch

from laconic.comm import Communicator, Ledger, run_ranks
from laconic.errors import StoreError
from laconic.graph import Shard
from laconic.session.data import absolute_source, describe_data, load_graph, prepare_features
from laconic.store import write_store


@pytest.fixture
def words(make_graph):
    """Rare words and few labels: 160 features for 30 training nodes."""
    graph, generator = make_graph(num_features=160), torch.Generator().manual_seed(3)
    counts = torch.randint(1, 5, (60, 160), generator=generator) * (torch.rand(60, 160, generator=generator) < 0.05)
    counts[5] = 0
    return dataclasses.replace(graph, x=counts.float())


def test_normalised_rows_sum_to_one_and_empty_rows_stay_empty(words):
    graph, done = prepare_features(words, "row")
    is_empty = words.x.sum(dim=1) == 0
    assert done == "row"
    assert bool(is_empty[5])
    assert graph.x[is_empty].abs().sum() == 0
    torch.testing.assert_close(graph.x[~is_empty].sum(dim=1), torch.ones(int((~is_empty).sum())))
    assert torch.equal(graph.x[~is_empty].argmax(dim=1), words.x[~is_empty].argmax(dim=1))


def test_auto_normalises_bags_of_words_with_few_labels_and_nothing_else(words, make_graph):
    dense = dataclasses.replace(words, x=words.x + 0.5)
    negative = dataclasses.replace(words, x=-words.x)
    many_labels = dataclasses.replace(words, x=words.x[:, :119])
    assert prepare_features(words, "auto")[1] == "row"
    assert prepare_features(dataclasses.replace(words, x=words.x[:, :120]), "auto")[1] == "row"
    for graph in (dense, negative, many_labels, make_graph()):
        assert prepare_features(graph, "auto") == (graph, "none")


def test_none_leaves_the_graph_itself(words, small_graph):
    for graph in (words, small_graph):
        assert prepare_features(graph, "none") == (graph, "none")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_widened(small_graph, dtype):
    half = dataclasses.replace(small_graph, x=small_graph.x.to(dtype))
    graph, _ = prepare_features(half, "none")
    assert graph.x.dtype == torch.float32
    assert torch.equal(graph.x, half.x.float())


def test_double_precision_features_stay(make_graph):
    graph = make_graph(dtype=torch.float64)
    assert prepare_features(graph, "none")[0] is graph


def test_a_single_negative_value_makes_it_no_bag_of_words(words):
    x = words.x.clone()
    x[1, 1] = -1
    assert prepare_features(dataclasses.replace(words, x=x), "auto")[1] == "none"


def test_ranks_decide_alike_by_the_features_of_all(words):
    x = words.x.clone()
    x[59, 0] = -1

    def run(features):
        def prepare(transport):
            rows = slice(0, 20) if transport.rank == 0 else slice(20, 60)
            whole = Shard.whole(dataclasses.replace(words, x=features))
            shard = dataclasses.replace(whole, x=whole.x[rows], train_mask=whole.train_mask[rows])
            return prepare_features(shard, "auto", Communicator(transport, Ledger(transport.rank)))[1]

        return run_ranks(2, prepare)

    assert run(words.x) == ["row", "row"]
    assert run(x) == ["none", "none"]


def test_the_description_of_a_graph_notices_what_a_run_depends_on(small_graph):
    before = describe_data(small_graph)
    flipped = dataclasses.replace(small_graph, edge_index=small_graph.edge_index.flip(1))
    relabelled = dataclasses.replace(small_graph, y=small_graph.y.flip(0))
    swapped = dataclasses.replace(small_graph, val_mask=small_graph.test_mask, test_mask=small_graph.val_mask)
    assert describe_data(dataclasses.replace(small_graph)) == before
    for other in (flipped, relabelled, swapped):
        assert describe_data(other) != before


def test_a_path_that_exists_is_made_absolute_and_a_name_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.npz").touch()
    (tmp_path / "odd(1).npz").touch()
    (tmp_path / "sbm").mkdir()
    assert absolute_source("graph.npz") == str(tmp_path / "graph.npz")
    assert absolute_source("./graph.npz(split=3)") == f"{tmp_path}/graph.npz(split=3)"
    assert absolute_source("odd(1).npz") == str(tmp_path / "odd(1).npz")
    for name in ("sbm", "sbm(nodes=50)", "absent.npz", "cora(split=3)", "x" * 5000):
        assert absolute_source(name) == name


def test_a_store_is_loaded_and_what_is_left_of_one_is_told_from_a_folder_of_tables(small_graph, tmp_path):
    write_store(small_graph, np.arange(60) % 3, tmp_path / "store")
    assert torch.equal(load_graph(str(tmp_path / "store")).x, small_graph.x)
    (tmp_path / "store" / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"is not a store: it has no manifest\.json"):
        load_graph(str(tmp_path / "store"))
