"""A graph from a folder of plain tables, with fixed names: edges, features, labels, and optionally split and nodes.

Each is one of .csv, .csv.gz, .parquet or .npy; a CSV file may have a header line.

    edges       source, destination and, optionally, weight.   .npy: (2, E) or (E, 2)
    features    one column per feature (or one column of lists).   .npy: (N, F)
    labels      one column of class numbers, or several of 0 and 1 (multi-label).   .npy: (N,) or (N, L)
    split       one column of the words train, val, test, or none for a node in no mask.   .npy: (N,) of text
    nodes       one column: the id of each row of features, where ids are not 0, 1, 2, ...

In features, labels and split, a column called `node` holds ids; without it row i is node i. Ids are any integers, and
are kept as `Graph.node_ids`. A node without a label is in no mask. Without a split file the split is drawn at random.

    graph = load_files("data/papers", add_reverse_edges=True)
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.datasets._arrays import read_npy
from laconic.datasets._edges import with_reverse_edges
from laconic.datasets._fields import (
    FeatureDtype,
    Normalisation,
    check_options,
    make_graph,
    no_labels,
    to_features,
    to_labels,
    to_weights,
)
from laconic.datasets._node_index import NodeIndex
from laconic.datasets._splits import SPLITS, labelled_masks, masks_of_rows
from laconic.datasets._tables import read_columns, stack
from laconic.errors import DataError
from laconic.graph import Graph

_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".npy")
_ID_COLUMN = "node"
_SPLIT_WORDS = (*SPLITS, "none")


def load_files(
    folder: Path | str,
    *,
    dtype: FeatureDtype = "float32",
    normalise_features: Normalisation = "none",
    add_reverse_edges: bool = False,
    train: float = 0.6,
    val: float = 0.2,
    seed: int = 0,
    labelled: bool = True,
) -> Graph:
    """Returns the graph of a folder of tables.

    Args:
        dtype, normalise_features: as for `load_npz`.
        add_reverse_edges: whether each edge gets its reverse (an undirected graph whose edges are listed once).
        train, val, seed: shares and seed of the random split, where there is no split file.
        labelled: as for `load_npz`.
    """
    folder = Path(folder)
    check_options(dtype, normalise_features)
    features_path, features_ids, features = _read_rows(folder, "features")
    index = _node_index(folder, features_path, features_ids, len(features))
    edge_index, edge_weight = _edges(folder, index, dtype)
    if add_reverse_edges:
        edge_index, edge_weight = with_reverse_edges(edge_index, edge_weight, index.num_nodes)
    fields = no_labels(index.num_nodes)
    if labelled:
        y, masks = _labels(folder, index), _masks(folder, index)
        fields = {"y": y, **(masks or labelled_masks(y, train, val, seed, where=str(folder)))}
    return make_graph(
        folder,
        name=folder.resolve().name,
        edge_index=edge_index,
        edge_weight=edge_weight,
        x=to_features(features, dtype, normalise_features, str(features_path)),
        node_ids=torch.from_numpy(index.ids),
        **fields,
    )


def holds_tables(folder: Path) -> bool:
    """Whether `folder` looks like one of these."""
    return bool(_candidates(folder, "edges"))


def _candidates(folder: Path, role: str) -> list[Path]:
    return [path for suffix in _SUFFIXES if (path := folder / f"{role}{suffix}").is_file()]


def _find(folder: Path, role: str) -> Path | None:
    found = _candidates(folder, role)
    if len(found) > 1:
        raise DataError(f"{folder} holds {' and '.join(path.name for path in found)}. Keep one of them.")
    return found[0] if found else None


def _require(folder: Path, role: str) -> Path:
    path = _find(folder, role)
    if path is None:
        held = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) if folder.is_dir() else "nothing"
        raise DataError(
            f"{folder} has no {role} file. A folder of tables holds edges, features and labels, each as "
            f"{', '.join(_SUFFIXES)}; this one holds {held or 'nothing'}."
        )
    return path


def _read_rows(folder: Path, role: str) -> tuple[Path, NDArray[Any] | None, NDArray[Any]]:
    """Returns the file, the ids of its rows if it names them, and the numbers in it."""
    path, ids = _require(folder, role), None
    if path.suffix == ".npy":
        values = read_npy(path)
    else:
        columns = read_columns(path)
        ids = columns.pop(_ID_COLUMN, None)
        values = stack(columns, str(path))
    if values.ndim == 0 or values.size == 0:
        raise DataError(f"{path} holds no {role}: it is of shape {values.shape}.")
    return path, ids, values


def _node_index(folder: Path, features_path: Path, ids: NDArray[Any] | None, num_nodes: int) -> NodeIndex:
    path = _find(folder, "nodes")
    if path is None:
        return NodeIndex.of(ids, num_nodes, where=features_path)
    if ids is not None:
        raise DataError(
            f"{folder}: both {path.name} and the column {_ID_COLUMN} of {features_path.name} hold node ids."
        )
    ids = read_npy(path) if path.suffix == ".npy" else stack(read_columns(path), str(path))
    return NodeIndex.of(ids[:, 0] if ids.ndim == 2 and ids.shape[1] == 1 else ids, num_nodes, where=path)


def _labels(folder: Path, index: NodeIndex) -> Tensor:
    path, ids, values = _read_rows(folder, "labels")
    y = to_labels(values, str(path))
    rows = index.rows_of(ids, len(y), where=path)
    placed = torch.full((index.num_nodes, *y.shape[1:]), -1 if y.dim() == 1 else float("nan"), dtype=y.dtype)
    placed[torch.from_numpy(rows)] = y
    return placed


def _edges(folder: Path, index: NodeIndex, dtype: FeatureDtype) -> tuple[Tensor, Tensor | None]:
    path = _require(folder, "edges")
    if path.suffix == ".npy":
        ends = read_npy(path)
        ends = ends if ends.ndim == 2 and ends.shape[0] == 2 else ends.T
        if ends.ndim != 2 or ends.shape[0] != 2:
            raise DataError(f"{path} should be of shape (2, edges) or (edges, 2), got {ends.T.shape}.")
        return index.edge_index(ends[0], ends[1], where=path), None
    columns = read_columns(path)
    names = list(columns)
    if len(names) == 1:
        raise DataError(
            f"{path} should have the columns source, destination and, optionally, weight; it has one column, "
            f"{names[0]!r}. Separate the columns by commas."
        )
    if not 2 <= len(names) <= 3:
        raise DataError(
            f"{path} should have the columns source, destination and, optionally, weight; it has "
            f"{', '.join(names)}. Edge features cannot be used yet: leave them out."
        )
    if {"source", "destination"} <= set(names):
        names.sort(key=lambda name: (name != "source", name != "destination"))
    edge_index = index.edge_index(columns[names[0]], columns[names[1]], where=path)
    weight = to_weights(columns[names[2]], dtype, f"{path}: column {names[2]}") if len(names) == 3 else None
    return edge_index, weight


def _masks(folder: Path, index: NodeIndex) -> dict[str, Tensor] | None:
    path = _find(folder, "split")
    if path is None:
        return None
    columns = {"split": read_npy(path)} if path.suffix == ".npy" else read_columns(path, words=_SPLIT_WORDS)
    ids = columns.pop(_ID_COLUMN, None)
    if len(columns) != 1:
        raise DataError(f"{path} should have one column besides {_ID_COLUMN}, it has {', '.join(columns) or 'none'}.")
    words = next(iter(columns.values()))
    strange = words[~np.isin(words, (*_SPLIT_WORDS, ""))] if words.dtype.kind == "U" else words
    if len(strange):
        raise DataError(f"{path} should hold the words {', '.join(SPLITS)} or none, one per node; got {strange[0]!s}.")
    rows = index.rows_of(ids, len(words), where=path)
    return masks_of_rows([rows[words == split] for split in SPLITS], index.num_nodes)
