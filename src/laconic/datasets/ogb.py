"""A node dataset of the Open Graph Benchmark, from its unpacked folder; nothing is downloaded, `ogb` is not needed.

Reads `raw/edge.csv.gz`, `node-feat`, `node-label`, `num-node-list` and `split/<name>/{train,valid,test}.csv.gz`, and
for the largest (ogbn-papers100M) `raw/data.npz` and `raw/node-label.npz`. Not `processed/`: that is pickled.

Every edge gets its reverse unless `add_reverse_edges=False`: nearly all published results on ogbn-arxiv and
ogbn-papers100M are on the undirected graph, and ogbn-products and ogbn-proteins are undirected, stored once.

    graph = load_ogb("dataset/ogbn_arxiv")
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from laconic.datasets._edges import with_reverse_edges
from laconic.datasets._fields import (
    FeatureDtype,
    Normalisation,
    check_options,
    make_graph,
    no_labels,
    to_edges,
    to_features,
    to_labels,
)
from laconic.datasets._ogb_raw import OgbRaw, read_csv_numbers, read_ogb_raw
from laconic.datasets._splits import masks_of_rows
from laconic.errors import ConfigError, DataError
from laconic.graph import Graph
from laconic.specs import unknown_name

EdgeFeatures = Literal["refuse", "drop", "mean"]

# Each undirected edge of these is stored once: without its reverse half of the graph would be missing. The split's name
# tells them as well as the folder's, which a user may have changed.
_STORED_ONCE = {"ogbn_products": "sales_ranking", "ogbn_proteins": "species"}


def load_ogb(
    folder: Path | str,
    *,
    dtype: FeatureDtype = "float32",
    normalise_features: Normalisation = "none",
    add_reverse_edges: bool = True,
    edge_features: EdgeFeatures = "refuse",
    split: str | None = None,
    labelled: bool = True,
) -> Graph:
    """Returns the graph of an unpacked OGB folder (the one that holds raw/ and split/).

    Args:
        dtype, normalise_features: as for `load_npz`.
        add_reverse_edges: whether each edge gets its reverse; False leaves ogbn-arxiv a directed graph. Products and
            proteins get theirs in any case.
        edge_features: what to do with edge features: "refuse" the dataset, "drop" them, or take the "mean" over each
            node's edges as (further) features of the node, as is usual for ogbn-proteins.
        split: name of the folder in split/, where there are several.
        labelled: as for `load_npz`; the files are there all the same.
    """
    folder = Path(folder)
    check_options(dtype, normalise_features)
    if edge_features not in ("refuse", "drop", "mean"):
        raise ConfigError(f"edge_features is one of refuse, drop, mean; got {edge_features!r}.")
    split_folder = _split_folder(folder, split)
    raw = read_ogb_raw(folder)
    edge_index = to_edges(raw.edges, f"{folder}: raw/edge", num_nodes=raw.num_nodes)
    x = _features(folder, raw, edge_features)
    if add_reverse_edges or _is_stored_once(folder, split_folder):
        edge_index, _ = with_reverse_edges(edge_index, None, raw.num_nodes)
    return make_graph(
        folder,
        name=folder.resolve().name,
        edge_index=edge_index,
        x=to_features(x, dtype, normalise_features, f"{folder}: raw/node-feat"),
        **(_labels(folder, split_folder, raw) if labelled else no_labels(raw.num_nodes)),
    )


def _is_stored_once(folder: Path, split_folder: Path) -> bool:
    return split_folder.name in _STORED_ONCE.values() or folder.resolve().name.startswith(tuple(_STORED_ONCE))


def _features(folder: Path, raw: OgbRaw, edge_features: EdgeFeatures) -> NDArray[Any]:
    parts = [] if raw.node_features is None else [raw.node_features]
    if raw.edge_features is not None and edge_features == "refuse":
        raise DataError(
            f"{folder}: raw/edge-feat holds edge features, which Laconic cannot use as such yet. Load it with "
            f"edge_features='mean' to give each node the mean over its edges, or 'drop' to do without them; for the "
            f"command: \"{folder}(edge_features='mean')\"."
        )
    if raw.edge_features is not None and edge_features == "mean":
        parts.append(_mean_over_edges(raw.edges, raw.edge_features, raw.num_nodes, folder))
    if not parts:
        raise DataError(f"{folder} has no node features: there is no raw/node-feat.csv.gz. Laconic needs some.")
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def _mean_over_edges(
    edges: NDArray[Any], features_EF: NDArray[Any], num_nodes: int, folder: Path
) -> NDArray[np.float64]:
    if features_EF.ndim != 2 or len(features_EF) != edges.shape[1]:
        raise DataError(f"{folder}: raw/edge-feat has {len(features_EF)} rows for {edges.shape[1]} edges.")
    ends = np.concatenate([edges[0], edges[1]])
    degree_N = np.bincount(ends, minlength=num_nodes).clip(min=1)
    mean_NF = np.empty((num_nodes, features_EF.shape[1]))
    for column in range(features_EF.shape[1]):
        both = np.concatenate([features_EF[:, column]] * 2)
        mean_NF[:, column] = np.bincount(ends, weights=both, minlength=num_nodes) / degree_N
    return mean_NF


def _split_folder(folder: Path, split: str | None) -> Path:
    names = sorted(entry.name for entry in (folder / "split").glob("*") if entry.is_dir())
    if split is not None and split not in names:
        raise ConfigError(f"{folder}: {unknown_name(split, names, family='split')}")
    if split is None and len(names) != 1:
        held = "holds no split folder. An unpacked OGB dataset has raw/ and split/<name>/"
        if names:
            held = f"holds the splits {', '.join(names)}. Say which: \"{folder}(split='{names[0]}')\""
        raise DataError(f"{folder / 'split'} {held}.")
    return folder / "split" / (split or names[0])


def _labels(folder: Path, split_folder: Path, raw: OgbRaw) -> dict[str, Any]:
    return {"y": to_labels(raw.labels, f"{folder}: raw/node-label"), **_masks(split_folder, raw.num_nodes)}


def _masks(split_folder: Path, num_nodes: int) -> dict[str, Tensor]:
    rows_of_split = []
    for name in ("train", "valid", "test"):
        rows = read_csv_numbers(split_folder, name)
        if rows.ndim != 2 or rows.shape[1] != 1:
            raise DataError(f"{split_folder / name}.csv.gz should hold one node number per line.")
        where = f"{split_folder / name}.csv.gz"
        rows_of_split.append(to_edges(rows[:, 0], where, num_nodes=num_nodes).numpy())
    return masks_of_rows(rows_of_split, num_nodes)
