"""One graph in one .npz file: read with `load_npz`, written with `save_npz`.

Arrays: `edge_index` (2, E) of integers; `y`, of integers or text; `train_mask`, `val_mask`, `test_mask` of bool, or
several splits as `train_masks`, ... (splits, N), or none of them for a random split; features as `x` (N, F), or sparse
as the parts of a CSR matrix `x_data`, `x_indices`, `x_indptr`, `x_shape`. Optional: `edge_weight`, `node_ids` (integers
or text), `id_names`, `class_names`, `num_classes`. Other arrays are left alone.

    graph = load_npz("cora.npz", normalise_features="row")
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.atomic import write_file
from laconic.datasets._arrays import NpzArrays, open_npz
from laconic.datasets._fields import (
    FeatureDtype,
    Normalisation,
    check_options,
    make_graph,
    no_labels,
    to_edges,
    to_features,
    to_mask,
    to_named_labels,
    to_weights,
)
from laconic.datasets._node_index import id_fields, to_ids
from laconic.datasets._sparse import dense_rows
from laconic.datasets._splits import SPLITS, labelled_masks
from laconic.errors import ConfigError, DataError
from laconic.graph import Graph

_CSR_PARTS = ("x_data", "x_indices", "x_indptr", "x_shape")
_EDGE_FEATURES = ("edge_attr", "edge_feat", "edge_features")
_LIKE_A_SPLIT = re.compile("train|valid|test|split|(^|_)val(_|$)")


def load_npz(
    path: Path | str,
    *,
    dtype: FeatureDtype = "float32",
    normalise_features: Normalisation = "none",
    add_reverse_edges: bool = False,
    split: int | None = None,
    train: float = 0.6,
    val: float = 0.2,
    seed: int = 0,
    labelled: bool = True,
) -> Graph:
    """Returns the graph of an .npz file.

    Args:
        dtype: what features and edge weights become.
        normalise_features: "row" divides each node's features by the sum of their absolute values.
        add_reverse_edges: whether each edge gets its reverse (an undirected graph whose edges are listed once).
        split: which of several splits to take; the file's own masks, or split 0, if not given.
        train, val, seed: shares and seed of the random split, where the file has no masks.
        labelled: False leaves labels and masks alone, of which there need be none: a graph to predict for.
    """
    path = Path(path)
    check_options(dtype, normalise_features)
    with open_npz(path) as arrays:
        for name in _EDGE_FEATURES:
            if name in arrays:
                raise DataError(
                    f"{path}: {name} holds edge features, which Laconic cannot use yet. "
                    f"Save the file without it, or save one weight per edge as edge_weight."
                )
        weights, classes = arrays.find("edge_weight"), arrays.find("num_classes")
        fields: dict[str, Any] = {
            "edge_index": to_edges(arrays["edge_index"], f"{path}: edge_index"),
            "x": to_features(_features(arrays, dtype), dtype, normalise_features, f"{path}: x"),
        }
        fields |= _ids(arrays)
        if labelled:
            fields |= _labels(arrays)
            masks = _masks(arrays, split)
            fields |= labelled_masks(fields["y"], train, val, seed, where=str(path)) if masks is None else masks
        else:
            fields |= no_labels(len(fields["x"]))
    if weights is not None:
        fields["edge_weight"] = to_weights(weights, dtype, f"{path}: edge_weight")
    if classes is not None:
        fields["num_classes"] = _count(classes, path)
    return make_graph(path, add_reverse_edges=add_reverse_edges, name=path.stem, **fields)


def _features(arrays: NpzArrays, dtype: FeatureDtype) -> NDArray[Any]:
    if "x" in arrays:
        return arrays["x"]
    if not any(part in arrays for part in _CSR_PARTS):
        raise DataError(
            f"{arrays.path} has no features: neither x nor the sparse parts {', '.join(_CSR_PARTS)}. "
            f"It holds {', '.join(arrays.names) or 'nothing'}."
        )
    return dense_rows(*(arrays[part] for part in _CSR_PARTS), dtype=dtype, where=str(arrays.path))


def _ids(arrays: NpzArrays) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in ("node_ids", "id_names"):
        values = arrays.find(name)
        if values is not None:
            # Numbers beyond int64 come out as text.
            fields |= id_fields(to_ids(values, f"{arrays.path}: {name}"))
    return fields


def _labels(arrays: NpzArrays) -> dict[str, Any]:
    names = arrays.find("class_names")
    known = () if names is None else tuple(map(str, names.tolist()))
    y, known = to_named_labels(arrays["y"], f"{arrays.path}: y", known)
    return {"y": y, "class_names": known}


def _masks(arrays: NpzArrays, split: int | None) -> dict[str, Tensor] | None:
    several = all(f"{name}_masks" in arrays for name in SPLITS)
    if split is None and not any(f"{name}_mask{s}" in arrays for name in SPLITS for s in ("", "s")):
        _refuse_other_splits(arrays)
        return None
    if split is None and (not several or "train_mask" in arrays):
        return {f"{name}_mask": to_mask(arrays[f"{name}_mask"], f"{arrays.path}: {name}_mask") for name in SPLITS}
    if not several:
        raise DataError(
            f"{arrays.path} holds one split; split={split} needs train_masks, val_masks and test_masks, "
            f"(splits, nodes). Leave split out."
        )
    chosen, masks = split or 0, {}
    for name in SPLITS:
        stacked = arrays[f"{name}_masks"]
        if stacked.ndim != 2 or not 0 <= chosen < len(stacked):
            raise DataError(
                f"{arrays.path}: there is no split {chosen}: {name}_masks is of shape {stacked.shape}, (splits, nodes)."
            )
        masks[f"{name}_mask"] = to_mask(stacked[chosen], f"{arrays.path}: {name}_masks")
    return masks


def _refuse_other_splits(arrays: NpzArrays) -> None:
    """Raises DataError if the file has a split under other names: a random one would be another."""
    others = [name for name in arrays.names if _LIKE_A_SPLIT.search(name.casefold())]
    if others:
        raise DataError(
            f"{arrays.path} has no masks, but {', '.join(others)}, which may be its split. Save it as train_mask, "
            f"val_mask and test_mask (bool, one per node); or save the file without, for a random split."
        )


def _count(values: NDArray[Any], path: Path) -> int:
    if values.size != 1 or values.dtype.kind not in "iu" or int(values.item()) < 1:
        raise DataError(f"{path}: num_classes should be one integer of 1 or more, got {values.dtype} {values.shape}.")
    return int(values.item())


def save_npz(graph: Graph, path: Path | str) -> None:
    """Writes `graph` as one .npz file that `load_npz` reads back; whole, or not at all."""
    path = Path(path)
    if path.suffix != ".npz":
        raise ConfigError(f"{path} should end in .npz, so that it is known for what it is.")
    arrays: dict[str, NDArray[Any]] = {
        "edge_index": _narrow(graph.edge_index),
        "x": graph.x.float().numpy() if graph.x.dtype == torch.bfloat16 else graph.x.numpy(),
        "y": graph.y.numpy(),
        "node_ids": graph.node_ids.numpy(),
        "num_classes": np.array(graph.num_classes),
        **{f"{name}_mask": mask.numpy() for name, mask in graph.mask_of.items()},
    }
    if graph.edge_weight is not None:
        arrays["edge_weight"] = graph.edge_weight.numpy()
    if graph.id_names is not None:
        arrays["id_names"] = graph.id_names
    if graph.class_names:
        arrays["class_names"] = np.array(graph.class_names)
    try:
        write_file(path, lambda temporary: np.savez(temporary, **arrays))  # type: ignore[arg-type]
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}. Choose another folder.") from error


def _narrow(edge_index: Tensor) -> NDArray[Any]:
    fits = edge_index.numel() == 0 or int(edge_index.max()) < 2**31
    return edge_index.numpy().astype(np.int32 if fits else np.int64)
