import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.datasets import load_ogb
from laconic.errors import ConfigError, DataError

EDGES = [(0, 1), (1, 0), (2, 3), (2, 3), (4, 4)]


def table(path: Path, rows: Iterable[Iterable[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def write_ogb(folder: Path, *, split: str = "time") -> Path:
    """An unpacked dataset of six nodes, as OGB lays it out; its last node has no label."""
    raw = folder / "raw"
    table(raw / "edge.csv.gz", EDGES)
    table(raw / "num-node-list.csv.gz", [[6]])
    table(raw / "num-edge-list.csv.gz", [[len(EDGES)]])
    table(raw / "node-feat.csv.gz", [[row, row / 2] for row in range(6)])
    table(raw / "node-label.csv.gz", [[0], [1], [2], [0], [1], [""]])
    for name, rows in (("train", [0, 1]), ("valid", [2]), ("test", [3, 4])):
        table(folder / "split" / split / f"{name}.csv.gz", [[row] for row in rows])
    return folder


def test_the_unpacked_csv_form_is_read(tmp_path: Path) -> None:
    graph = load_ogb(write_ogb(tmp_path / "ogbn_arxiv"))
    assert graph.name == "ogbn_arxiv"
    assert graph.x.tolist() == [[row, row / 2] for row in range(6)]
    assert graph.y.tolist() == [0, 1, 2, 0, 1, -1]
    assert [mask.nonzero().flatten().tolist() for mask in graph.mask_of.values()] == [[0, 1], [2], [3, 4]]


def test_the_binary_form_gives_the_same_graph(tmp_path: Path) -> None:
    text = load_ogb(write_ogb(tmp_path / "text"))
    folder = write_ogb(tmp_path / "binary")
    for path in (folder / "raw").iterdir():
        path.unlink()
    np.savez(
        folder / "raw" / "data.npz",
        edge_index=np.array(EDGES).T,
        node_feat=np.array([[row, row / 2] for row in range(6)], np.float32),
        node_year=np.zeros((6, 1)),
        num_nodes_list=np.array([6]),
        num_edges_list=np.array([len(EDGES)]),
    )
    np.savez(folder / "raw" / "node-label.npz", node_label=np.array([[0], [1], [2], [0], [1], [np.nan]]))
    binary = load_ogb(folder)
    for field in ("edge_index", "x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(binary, field), getattr(text, field)), field


def test_every_edge_gets_its_reverse_unless_told_otherwise(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path)
    assert load_ogb(folder).edge_index.T.tolist() == [[0, 1], [1, 0], [2, 3], [3, 2], [4, 4]]
    directed = load_ogb(folder, add_reverse_edges=False)
    assert [tuple(edge) for edge in directed.edge_index.T.tolist()] == EDGES


@pytest.mark.parametrize(
    ("name", "split"), [("ogbn_products", "random"), ("renamed", "sales_ranking"), ("x", "species")]
)
def test_edges_that_ogb_stores_once_get_their_reverse_in_any_case(tmp_path: Path, name: str, split: str) -> None:
    graph = load_ogb(write_ogb(tmp_path / name, split=split), add_reverse_edges=False)
    assert [3, 2] in graph.edge_index.T.tolist()


def test_edge_features_are_refused_dropped_or_averaged_as_asked(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path)
    table(folder / "raw" / "edge-feat.csv.gz", [[1, 10], [3, 10], [5, 0], [7, 0], [9, 9]])
    with pytest.raises(DataError, match=r"raw/edge-feat holds edge features.*edge_features='mean'"):
        load_ogb(folder)
    assert load_ogb(folder, edge_features="drop").num_features == 2
    mean = load_ogb(folder, edge_features="mean").x[:, 2:]
    assert mean.tolist() == [[2, 10], [2, 10], [6, 0], [6, 0], [9, 9], [0, 0]]
    (folder / "raw" / "node-feat.csv.gz").unlink()
    assert load_ogb(folder, edge_features="mean").num_features == 2
    with pytest.raises(DataError, match="has no node features"):
        load_ogb(folder, edge_features="drop")
    with pytest.raises(ConfigError, match="edge_features is one of refuse, drop, mean"):
        load_ogb(folder, edge_features="sum")  # type: ignore[arg-type]


def test_several_labels_per_node_become_floats(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path)
    table(folder / "raw" / "node-label.csv.gz", [[0, 1, 1]] * 6)
    graph = load_ogb(folder)
    assert graph.is_multilabel
    assert graph.y.dtype == torch.float32


def test_one_of_several_splits_is_chosen_by_name(tmp_path: Path) -> None:
    folder = write_ogb(write_ogb(tmp_path, split="time"), split="random")
    for name in ("train", "valid", "test"):
        table(folder / "split" / "random" / f"{name}.csv.gz", [[{"train": 4, "valid": 1, "test": 0}[name]]])
    with pytest.raises(DataError, match=r"holds the splits random, time\. Say which: \".*\(split='random'\)\""):
        load_ogb(folder)
    assert load_ogb(folder, split="random").train_mask.nonzero().flatten().tolist() == [4]
    with pytest.raises(ConfigError, match=r"Unknown split 'tim'.*Did you mean 'time'"):
        load_ogb(folder, split="tim")


def test_files_that_were_unpacked_further_are_read_too(tmp_path: Path) -> None:
    folder = write_ogb(tmp_path)
    packed = folder / "raw" / "node-feat.csv.gz"
    (folder / "raw" / "node-feat.csv").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert load_ogb(folder).num_features == 2


@pytest.mark.parametrize("name", ["raw/edge", "raw/node-label", "raw/num-node-list", "split/time/valid"])
def test_an_absent_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_ogb(tmp_path)
    (folder / f"{name}.csv.gz").unlink()
    with pytest.raises(DataError, match=rf"{folder}/{name}\.csv\.gz: there is no such file"):
        load_ogb(folder)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = write_ogb(tmp_path) / "raw" / "edge.csv.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"edge\.csv\.gz cannot be read"):
        load_ogb(tmp_path)


@pytest.mark.parametrize("edge", [(0, 6), (-1, 0)])
def test_an_edge_out_of_range_is_named_before_reverses_are_made_of_it(tmp_path: Path, edge: tuple[int, int]) -> None:
    table(write_ogb(tmp_path) / "raw" / "edge.csv.gz", [edge])
    with pytest.raises(DataError, match=r"raw/edge should hold node numbers from 0 to 5"):
        load_ogb(tmp_path)


def test_a_split_row_out_of_range_is_named(tmp_path: Path) -> None:
    table(write_ogb(tmp_path) / "split" / "time" / "test.csv.gz", [[6]])
    with pytest.raises(DataError, match=r"test\.csv\.gz should hold node numbers from 0 to 5, got 6 to 6"):
        load_ogb(tmp_path)


def test_a_heterogeneous_dataset_and_one_of_many_graphs_are_refused_by_name(tmp_path: Path) -> None:
    table(write_ogb(tmp_path / "many") / "raw" / "num-node-list.csv.gz", [[3], [3]])
    with pytest.raises(DataError, match="names 2 graphs"):
        load_ogb(tmp_path / "many")
    table(write_ogb(tmp_path / "mag") / "raw" / "triplet-type-list.csv.gz", [["a", "b", "c"]])
    with pytest.raises(DataError, match="heterogeneous"):
        load_ogb(tmp_path / "mag")


def test_a_folder_without_splits_is_told(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with pytest.raises(DataError, match=r"split holds no split folder"):
        load_ogb(tmp_path)
