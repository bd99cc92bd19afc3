"""A graph from a folder of plain tables, with fixed names: edges, features, labels, and optionally split and nodes.

Each is one of .csv, .csv.gz, .parquet or .npy; a CSV file may have a header line.

    edges       source, target and, optionally, weight.   .npy: (2, E) or (E, 2)
    features    one column per feature (or one column of lists).   .npy: (N, F)
    labels      label: numbers or text; or several columns of 0 and 1 (multi-label).   .npy: (N,) or (N, L)
    split       split: the words train, val, test, or none for a node in no mask.   .npy: (N,) of text
    nodes       node: the id of each row of features, where these are not 0, 1, 2, ...

Columns are known by their names, in any order and case, under the usual synonyms (`_column_names.py`); a name that is
not known is refused, with the mapping to give as `columns`. Without a header, edges are source, target, weight.

A column `node` (or id, node_id) holds ids; without it row i is node i. Features may hold the columns label and split
themselves, in place of those files; without features, nodes may hold them. Ids are integers or text, labels too: text
is kept as `Graph.id_names` and `Graph.class_names`. A node without a label is in no mask. Without a split, it is drawn
at random.

    graph = load_files("data/papers", add_reverse_edges=True, columns="source=citing, target=cited, ignore=year")
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.datasets._column_names import IGNORED, LABEL, SOURCE, SPLIT, TARGET, WEIGHT
from laconic.datasets._columns import ColumnMapping
from laconic.datasets._fields import (
    FeatureDtype,
    Normalisation,
    check_options,
    make_graph,
    no_labels,
    to_features,
    to_named_labels,
    to_weights,
)
from laconic.datasets._node_index import NodeIndex, to_ids
from laconic.datasets._splits import SPLITS, labelled_masks, masks_of_rows
from laconic.datasets._table_folder import SPLIT_WORDS, Table, TableFolder
from laconic.datasets._tables import stack
from laconic.errors import DataError
from laconic.graph import Graph


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
    columns: str = "",
) -> Graph:
    """Returns the graph of a folder of tables.

    Args:
        dtype, normalise_features, add_reverse_edges: as for `load_npz`.
        train, val, seed: shares and seed of the random split, where there is no split.
        labelled: as for `load_npz`.
        columns: what columns of other names are, as "role=column, role=column"; roles are source, target, weight, node,
            label, split, feature and ignore. A column may be given with its table: "ignore=features.label".
    """
    folder = Path(folder)
    check_options(dtype, normalise_features)
    tables = TableFolder(folder, ColumnMapping.parse(columns, given_as=str(folder)))
    features, index = _features(tables)
    values = _numbers(tables, features) if features.array is None else features.array
    edge_index, edge_weight = _edges(tables, index, dtype)
    fields = no_labels(index.num_nodes)
    if labelled:
        fields = _labels(tables, features, index)
        masks = _masks(tables, features, index)
        fields |= labelled_masks(fields["y"], train, val, seed, where=str(folder)) if masks is None else masks
        tables.mapping.check_used()
    return make_graph(
        folder,
        add_reverse_edges=add_reverse_edges,
        name=folder.resolve().name,
        edge_index=edge_index,
        edge_weight=edge_weight,
        x=to_features(values, dtype, normalise_features, str(features.path)),
        **index.fields,
        **fields,
    )


def holds_tables(folder: Path) -> bool:
    """Whether `folder` looks like one of these."""
    return bool(TableFolder(folder, ColumnMapping()).candidates("edges"))


def _features(tables: TableFolder) -> tuple[Table, NodeIndex]:
    nodes_path = tables.find("nodes")
    path = tables.find("features")
    if path is None:
        # All that is known of the nodes may stand in one table.
        path, nodes_path = nodes_path or tables.require("features"), None
    features = tables.read("features", path)
    num_nodes = _num_rows(features, "features")
    if nodes_path is None:
        return features, NodeIndex.of(features.node_ids, num_nodes, where=path)
    if features.node_ids is not None:
        raise DataError(
            f"{tables.folder}: both {nodes_path.name} and a column of {path.name} hold node ids. Keep one of them."
        )
    nodes = tables.read("nodes", nodes_path)
    ids = nodes.node_ids if nodes.array is None else to_ids(_one_column(nodes.array), str(nodes_path))
    return features, NodeIndex.of(ids, num_nodes, where=nodes_path)


def _numbers(tables: TableFolder, features: Table) -> NDArray[Any]:
    texts = [name for name, column in features.many.items() if column.dtype.kind not in "fiub"]
    if texts:
        found = features.many[texts[0]]
        example = f"text such as {str(found.flat[0])!r}" if found.dtype.kind == "U" and found.size else found.dtype
        line = tables.mapping.line_with([(IGNORED, name) for name in texts])
        raise DataError(
            f"{features.path}: column {texts[0]} should hold numbers, got {example}. Turn it into numbers; or say that "
            f"it is not a feature behind the name of the data, for example:{line}\nRoles of columns: node, label, "
            f"split, ignore."
        )
    return stack(dict(features.many), str(features.path))


def _num_rows(table: Table, what: str) -> int:
    values = table.array if table.array is not None else next(iter({**table.many, **table.of}.values()), None)
    if values is None or values.ndim == 0 or values.size == 0 or (what == "features" and not _has_features(table)):
        raise DataError(f"{table.path} holds no {what}. Give each node at least one column, or one row, of them.")
    return len(values)


def _has_features(table: Table) -> bool:
    return table.array is not None or bool(table.many)


def _one_column(values: NDArray[Any]) -> NDArray[Any]:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _table_of(role: str, name: str, tables: TableFolder, features: Table) -> Path | None:
    """Returns the file of a role that the features may hold themselves; None if they do."""
    path = tables.find(name)
    if role in features.of and path is not None:
        line = tables.mapping.line_with([(IGNORED, f"features.{features.columns[role].strip()}")])
        raise DataError(
            f"{tables.folder}: {features.path.name} has a column for the {role}, and there is {path.name} too. Keep "
            f"one, or leave the column out:{line}"
        )
    return path


def _labels(tables: TableFolder, features: Table, index: NodeIndex) -> dict[str, Any]:
    path = _table_of(LABEL, "labels", tables, features)
    if path is None and LABEL in features.of:
        y, names = to_named_labels(features.of[LABEL], f"{features.path}: the label")
        return {"y": y, "class_names": names}
    table = tables.read("labels", path or tables.require("labels"))
    num_rows = _num_rows(table, "labels")
    names = tuple(table.many) if table.header is not None and table.header.has_names else ()
    if table.array is not None:
        values = table.array
    else:
        values = table.of[LABEL] if LABEL in table.of else stack(dict(table.many), str(table.path))
    y, names = to_named_labels(values, str(table.path), names)
    rows = index.rows_of(table.node_ids, num_rows, where=table.path, header=table.first_line)
    placed = torch.full((index.num_nodes, *y.shape[1:]), -1 if y.dim() == 1 else float("nan"), dtype=y.dtype)
    placed[torch.from_numpy(rows)] = y
    return {"y": placed, "class_names": names}


def _edges(tables: TableFolder, index: NodeIndex, dtype: FeatureDtype) -> tuple[Tensor, Tensor | None]:
    table = tables.read("edges", tables.require("edges"))
    if table.array is not None:
        ends = table.array
        ends = ends if ends.ndim == 2 and ends.shape[0] == 2 else ends.T
        if ends.ndim != 2 or ends.shape[0] != 2:
            raise DataError(f"{table.path} should be of shape (2, edges) or (edges, 2), got {ends.T.shape}.")
        return index.edge_index(*(to_ids(end, str(table.path)) for end in ends), where=table.path), None
    edge_index = index.edge_index(table.ids[SOURCE], table.ids[TARGET], where=table.path)
    weight = table.of.get(WEIGHT)
    return edge_index, None if weight is None else to_weights(weight, dtype, f"{table.path}: the weight")


def _masks(tables: TableFolder, features: Table, index: NodeIndex) -> dict[str, Tensor] | None:
    path = _table_of(SPLIT, "split", tables, features)
    if path is None and SPLIT not in features.of:
        return None
    table = features if path is None else tables.read("split", path)
    words = table.of[SPLIT] if table.array is None else _one_column(table.array)
    strange = words[~np.isin(words, (*SPLIT_WORDS, ""))] if words.dtype.kind == "U" else words
    if len(strange):
        raise DataError(
            f"{table.path} should hold the words {', '.join(SPLITS)} or none, one per node; got {strange[0]!s}."
        )
    if path is None:
        rows = np.arange(index.num_nodes)
    else:
        rows = index.rows_of(table.node_ids, len(words), where=table.path, header=table.first_line)
    return masks_of_rows([rows[words == split] for split in SPLITS], index.num_nodes)
