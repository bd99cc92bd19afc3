"""The graph of a run: loaded from wherever it is, its features ready for a model."""

import dataclasses
import logging
import os
import zlib
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from laconic.comm import Communicator
from laconic.datasets import GENERATORS, load
from laconic.errors import ConfigError, DataError
from laconic.graph import Graph, Shard
from laconic.store import Manifest, Store, looks_like_store, open_store
from laconic.units import format_count

logger = logging.getLogger(__name__)

Holder = TypeVar("Holder", Graph, Shard)

_GIVEN = "given("

# Shapes: N nodes, F features


def load_graph(source: str, *, labelled: bool = True, undirected: bool = False) -> Graph:
    """Returns the graph that `source` names: a store folder, or anything that `laconic.datasets.load` knows.

    The nodes of a store that was reordered stay in that order, which is faster to train on; `node_ids` has their ids.
    """
    check_undirected(source, undirected)
    if looks_like_store(source):
        store = open_store(Path(source))
        return store.to_graph(numbering="source" if store.manifest.reorder == "none" else "store")
    return load(source, labelled=labelled, undirected=undirected)


def given_source(graph: Graph, checksum: int) -> str:
    """Returns the `data.source` of a run whose graph was an object: its name and checksum; the graph is not kept."""
    return f"{_GIVEN}name={graph.name!r}, num_nodes={graph.num_nodes}, checksum={checksum})"


def check_is_kept(source: str) -> None:
    """Raises ConfigError for the source of a run whose graph was an object."""
    if source.startswith(_GIVEN):
        raise ConfigError(
            f"The graph of this run was an object given to laconic.start {source.removeprefix('given')}. A run folder "
            f"does not keep it. Give it again, as in laconic.predict(folder, graph=graph) or "
            f"laconic.resume(folder, graph=graph); `laconic predict` takes --data FILE."
        )


def open_data(source: str, num_ranks: int, *, labelled: bool = True, undirected: bool = False) -> Graph | Store:
    """Returns what `source` names: a store stays one where ranks read their own chunks of it; else the whole graph.

    Args:
        labelled: False is for prediction, and takes files without labels and masks too.
        undirected: whether each edge gets its reverse, as `data.undirected` says.
    """
    check_is_kept(source)
    check_undirected(source, undirected)
    if num_ranks > 1 and looks_like_store(source):
        return open_store(Path(source))
    return load_graph(source, labelled=labelled, undirected=undirected)


def check_undirected(source: str, undirected: bool) -> None:
    """Raises ConfigError if a store is to be undirected: its edges are those that were written."""
    if undirected and looks_like_store(source):
        raise ConfigError(
            f"{source} is a store, and its edges stay as they were written. Leave --undirected (data.undirected) out, "
            f"or write the store again with `laconic partition DATA {source} --parts N --undirected --overwrite`."
        )


def check_trainable(name: str, num_train: int) -> None:
    """Raises DataError if a graph has no training node: one may predict for it, not train on it."""
    if num_train == 0:
        raise DataError(
            f"{name}: there is no training node: the masks are empty, or the graph was loaded without its labels. Give "
            f"it train_mask, val_mask and test_mask, with some nodes in each; `laconic predict --data` needs none."
        )


def absolute_source(source: str) -> str:
    """Returns `source` such that it means the same from any folder: a path that exists is made absolute."""
    name, bracket, options = source.partition("(")
    # Not Path.exists, which raises for what is too long to be a path.
    if os.path.exists(source):
        name, bracket, options = source, "", ""
    path = os.path.expanduser(name.strip())
    if name.strip() in GENERATORS or not os.path.exists(path):
        return source
    return f"{Path(path).resolve()}{bracket}{options}"


Normalisation = Literal["row", "none"]


def prepare_features(
    holder: Holder, mode: str, communicator: Communicator | None = None
) -> tuple[Holder, Normalisation]:
    """Returns the graph or shard with float features, normalised as asked, and what was done.

    See `data.normalise_features`; `prepare_rows` does the same to other rows.

    Args:
        communicator: where `holder` is one rank's share, so that all of them decide alike.
    """
    x_NF = prepare_rows(holder.x, "none")
    is_wanted = mode == "row" or (mode == "auto" and _looks_normalisable(x_NF, holder.train_mask, communicator))
    if is_wanted and mode == "auto":
        logger.info(
            "Bags of words and few training nodes: each row of features is divided by its sum. "
            "data.normalise_features=none leaves them as they are."
        )
    normalised: Normalisation = "row" if is_wanted else "none"
    x_NF = prepare_rows(x_NF, normalised)
    return holder if x_NF is holder.x else dataclasses.replace(holder, x=x_NF), normalised


def prepare_rows(x_NF: Tensor, normalised: Normalisation) -> Tensor:
    """Returns rows of features as floats, each divided by its sum where `normalised` says so."""
    x_NF = x_NF if x_NF.dtype in (torch.float32, torch.float64) else x_NF.float()
    if normalised == "none":
        return x_NF
    # A node without a word keeps its row of zeros.
    sums = x_NF.abs().sum(dim=1, keepdim=True)
    return x_NF / torch.where(sums == 0, torch.ones_like(sums), sums)


def _looks_normalisable(x_NF: Tensor, train_mask: Tensor, communicator: Communicator | None) -> bool:
    """Whether there are few training nodes and the features are bags of words.

    Few: four features or more for each training node. Small inputs learn slowly and are held back by weight decay.
    Measured (docs/decisions/0006-training-defaults.md): that helps where a model would otherwise learn 100 nodes by
    heart, and costs up to 14 points where there are many.

    Bags of words, counted or weighted: none negative, at least half of them 0.
    """
    counts = torch.stack([train_mask.sum(), (x_NF != 0).sum(), (x_NF < 0).sum(), torch.tensor(x_NF.numel())])
    if communicator is not None:
        counts = communicator.all_reduce(counts)
    num_train, num_nonzero, num_negative, num_all = counts.tolist()
    has_few_labels = x_NF.shape[1] >= 4 * num_train
    return bool(has_few_labels and num_negative == 0 and 2 * num_nonzero <= num_all)


def describe_split(about: Graph | Manifest) -> str:
    """Returns the sizes of the splits and where they come from: "140 train, 500 val, 1,000 test (given)"."""
    counts = about.num_of_split
    if counts is None:
        # A store of an older version: it tells the training nodes only.
        assert isinstance(about, Manifest)
        counts = {"train": sum(about.partition.num_train)}
    told = ", ".join(f"{format_count(count)} {split}" for split, count in counts.items())
    return f"{told} ({about.split_origin})" if about.split_origin else told


def describe_data(data: Graph | Store, source: str | None = None) -> dict[str, Any]:
    """Returns what a continued run compares, to notice that the data is not the same any more.

    Args:
        source: where `data` was opened from. One rank holds a store as a graph, several do not: it is the same to both.
    """
    if source is not None and isinstance(data, Graph) and looks_like_store(source):
        data = open_store(Path(source))
    about = data if isinstance(data, Graph) else data.manifest
    return {
        "num_nodes": about.num_nodes,
        "num_edges": about.num_edges,
        "num_features": about.num_features,
        "num_classes": about.num_classes,
        "is_multilabel": about.is_multilabel,
        "class_names": list(about.class_names) or None,
        "checksum": _checksum(data) if isinstance(data, Graph) else data.manifest.fingerprint,
    }


def _checksum(graph: Graph) -> int:
    checksum = 0
    tensors = [graph.x, graph.edge_index, graph.y, graph.train_mask, graph.val_mask, graph.test_mask, graph.node_ids]
    for tensor in tensors if graph.edge_weight is None else [*tensors, graph.edge_weight]:
        # As bytes: numpy does not know every type that features may have.
        checksum = zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().data, checksum)
    return checksum if graph.id_names is None else zlib.crc32(graph.id_names.tobytes(), checksum)
