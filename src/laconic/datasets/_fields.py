"""Raw arrays to the fields of a Graph. Each function refuses what it cannot take, naming the file and the field."""

import dataclasses
import logging
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.datasets._arrays import to_text
from laconic.datasets._column_names import first_few
from laconic.datasets._edges import with_reverse_edges
from laconic.errors import ConfigError, DataError
from laconic.graph import Graph
from laconic.specs import shorten

logger = logging.getLogger(__name__)

FeatureDtype = Literal["float32", "float64"]
Normalisation = Literal["none", "row"]

# More different labels than this, and than half of the nodes, are no classes but names of the nodes.
_MOST_TEXTS = 100

# Texts, in small letters, that other programs write where there is no value.
_LIKE_NO_LABEL = ("na", "n/a", "#n/a", "<na>", "nan", "null", "none")

# Shapes: N nodes, F features, L labels


def make_graph(where: Path | str, *, add_reverse_edges: bool = False, **fields: Any) -> Graph:
    """Returns the Graph of `fields`; an error names the file or object `where` instead of the graph.

    Args:
        add_reverse_edges: whether each edge gets its reverse.
    """
    try:
        graph = Graph(**fields)
        return undirected(graph) if add_reverse_edges else graph
    except DataError as error:
        raise DataError(f"{where}: {str(error).removeprefix(fields['name'] + ': ')}") from error


def undirected(graph: Graph) -> Graph:
    """Returns the graph with the reverse of each edge, duplicates merged; see `with_reverse_edges`."""
    edge_index, edge_weight = with_reverse_edges(graph.edge_index, graph.edge_weight, graph.num_nodes)
    return dataclasses.replace(graph, edge_index=edge_index, edge_weight=edge_weight)


def to_edges(values: NDArray[Any], where: str, *, num_nodes: int | None = None) -> Tensor:
    """Returns node numbers of any integer type as int64, all below `num_nodes` if that is given."""
    if values.dtype.kind not in "iu":
        raise DataError(f"{where} should hold node numbers, of an integer type, got {_kind(values)}.")
    if num_nodes is not None and values.size and not 0 <= values.min() <= values.max() < num_nodes:
        raise DataError(
            f"{where} should hold node numbers from 0 to {num_nodes - 1}, got {values.min()} to {values.max()}."
        )
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        raise DataError(f"{where} should hold node numbers, got {values.max()}, which is too large for one.")
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))


def to_weights(values: NDArray[Any], dtype: FeatureDtype, where: str) -> Tensor:
    """Returns edge weights; one column is taken as none."""
    if values.dtype.kind not in "fiu":
        raise DataError(f"{where} should hold numbers, one per edge, got {_kind(values)}.")
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    return _as_float(flat, dtype, where)


def to_features(values: NDArray[Any], dtype: FeatureDtype, normalise: Normalisation, where: str) -> Tensor:
    """Returns features as `dtype`, each row divided by the sum of its sizes if `normalise` is "row"."""
    if values.dtype.kind not in "fiub":
        raise DataError(f"{where} should hold numbers, (nodes, features), got {_kind(values)}.")
    x_NF = _as_float(values, dtype, where)
    return normalise_rows(x_NF) if normalise == "row" else x_NF


def _as_float(values: NDArray[Any], dtype: FeatureDtype, where: str) -> Tensor:
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(values, dtype=dtype)
    if values.dtype.itemsize > converted.dtype.itemsize and (lost := np.isinf(converted) & np.isfinite(values)).any():
        # Only what conversion made infinite: what was so before, the graph itself refuses.
        raise DataError(
            f"{where} holds {values[lost][0]:g}, too large for {dtype} (at most {np.finfo(dtype).max:.3g}). Scale the "
            f"values, or load them with dtype='float64'."
        )
    return torch.from_numpy(converted)


def normalise_rows(x_NF: Tensor) -> Tensor:
    """Returns rows divided by the sum of their absolute values; a row of zeros stays."""
    sums = x_NF.abs().sum(dim=-1, keepdim=True)
    return x_NF / torch.where(sums == 0, torch.ones_like(sums), sums)


def to_named_labels(
    values: NDArray[Any], where: str, class_names: tuple[str, ...] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    """Returns labels as `to_labels` does, and the names of the classes where labels are text, in the order of letters.

    The log tells these names. Only an empty text is no label: a class such as "NA" gets a warning.

    Args:
        class_names: the names by class number, where they are known; a text that is none of them is refused.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind == "S":
        values = to_text(values, where)
    if values.dtype.kind != "U" or values.ndim != 1:
        return to_labels(values, where), class_names
    texts_N = np.char.strip(values)
    found = np.unique(texts_N[texts_N != ""])
    names = np.asarray(class_names or found, dtype=np.str_)
    if len(found) > max(_MOST_TEXTS, len(texts_N) / 2):
        raise DataError(
            f"{where} holds {len(found)} different texts for {len(texts_N)} nodes, such as {str(found[0])!r}: too many "
            f"to be classes."
        )
    if unknown := sorted(set(found.tolist()) - set(names.tolist())):
        raise DataError(f"{where} holds the class {unknown[0]!r}, which class_names does not: {list(class_names)[:8]}.")
    _tell_classes(names.tolist(), where, are_given=bool(class_names))
    number_of = {"": -1} | {name: number for number, name in enumerate(names.tolist())}
    return torch.tensor([number_of[text] for text in texts_N.tolist()], dtype=torch.int64), tuple(names.tolist())


def _tell_classes(names: list[str], where: str, *, are_given: bool) -> None:
    shown = first_few([shorten(name, 40) for name in names])
    logger.info("%s: %d class%s <- %s.", where, len(names), "" if len(names) == 1 else "es", shown)
    doubtful = [] if are_given else [name for name in names if name.casefold() in _LIKE_NO_LABEL]
    if doubtful:
        logger.warning(
            "%s: %s is taken for a class, like any other text. If it means that a node has no label, leave the label "
            "of that node empty.",
            where,
            " and ".join(map(repr, doubtful)),
        )


def to_labels(values: NDArray[Any], where: str) -> Tensor:
    """Returns class numbers (N,) as int64, NaN as -1 (no label); or several 0/1 labels per node (N, L) as float32."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1 and values.dtype.kind == "f" and _is_integral(values):
        # Class numbers with gaps: what reading a table makes of integers with some missing.
        values = np.where(np.isnan(values), -1, values).astype(np.int64)
    if values.ndim == 2 and values.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    if values.dtype.kind not in "iub":
        raise DataError(
            f"{where} should hold integer class numbers (nodes,), or 0 and 1 for several labels per node "
            f"(nodes, labels), got {_kind(values)}. Values to be estimated (regression) are not supported."
        )
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))


def to_mask(values: NDArray[Any], where: str) -> Tensor:
    """Returns a mask; nothing but bool is taken, since a list of node numbers would pass for one."""
    if values.dtype != np.bool_:
        raise DataError(
            f"{where} should be bool, one per node, got {_kind(values)}. If it holds 0 or 1 for each node, save it as "
            f"mask.astype(bool)."
        )
    return torch.from_numpy(np.ascontiguousarray(values))


def no_labels(num_nodes: int) -> dict[str, Any]:
    """Returns the labels and masks of a graph that has none: one to predict for."""
    nobody = torch.zeros(num_nodes, dtype=torch.bool)
    labels = torch.full((num_nodes,), -1)
    return {"y": labels, "train_mask": nobody, "val_mask": nobody, "test_mask": nobody}


def check_options(dtype: str, normalise_features: str) -> None:
    """Raises ConfigError unless both options are among their choices."""
    for option, value, choices in (
        ("dtype", dtype, ("float32", "float64")),
        ("normalise_features", normalise_features, ("none", "row")),
    ):
        if value not in choices:
            raise ConfigError(f"{option} is one of {', '.join(choices)}; got {value!r}.")


def _is_integral(values: NDArray[Any]) -> bool:
    given = values[~np.isnan(values)]
    return bool(np.isfinite(given).all() and (given == np.floor(given)).all())


def _kind(values: NDArray[Any]) -> str:
    return f"{values.dtype} of shape {values.shape}"
