"""Rows of all nodes in one place and in one order, however ranks share them, and the nodes' ids as in the data."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm import Communicator
from laconic.comm.gather import gather_rows
from laconic.graph import Graph, Shard
from laconic.graph.id_names import decode_names
from laconic.sharded.chunk_map import ChunkMap
from laconic.store import Store

# Shapes: N nodes, B bytes of the longest id that is text


def gather_by_node(
    communicator: Communicator, data: Graph | Store, shard: Shard, rows: Tensor
) -> tuple[NDArray[Any], Tensor]:
    """Returns the id of each node and its row on rank 0; nothing on others. Booked as evaluation.

    Nodes are in the order of their numbers: their ids, or, where ids are text, the rows of the data. Of text ids,
    nodes that were added to the graph have their numbers as text.

    Traffic: the rows and the numbers; where ranks have read chunks of a store with text ids, also these.

    Args:
        data: what the shard was made of.
        shard: what this rank holds of the graph.
        rows: one for each node that this rank owns; rows behind those are left out.
    """
    own = shard.node_ids[: shard.num_owned]
    with communicator.ledger.phase("evaluation"):
        gathered = gather_rows(communicator, rows[: shard.num_owned].contiguous(), root=0)
        numbers = gather_rows(communicator, own, root=0)
        ids = numbers.numpy()
        if isinstance(data, Graph):
            ids = ids if data.id_names is None else _names_of(numbers, data.node_ids, data.id_names)
        elif data.manifest.has_id_names:
            ids = decode_names(gather_rows(communicator, _own_names(data, own, communicator), root=0))
    if ids.dtype.kind == "U" and (ids == "").any():
        # No id is empty: these nodes were added to the graph, and go by their numbers.
        ids = np.where(ids == "", numbers.numpy().astype(np.str_), ids)
    order = numbers.argsort()
    return ids[order.numpy()], gathered[order]


def _own_names(store: Store, numbers: Tensor, communicator: Communicator) -> Tensor:
    """Returns the text of each number as bytes, (N, B): a rank's own chunks have them, as a rule."""
    chunk_map = ChunkMap.even([chunk.num_nodes for chunk in store.manifest.chunks], communicator.num_ranks)
    own = list(chunk_map.chunks_of(communicator.rank))
    known, names = _read_names(store, own)
    if not bool(torch.isin(numbers, known).all()):
        known, names = _read_names(store, range(store.num_chunks))
    return torch.from_numpy(_names_of(numbers, known, names.numpy()))


def _read_names(store: Store, chunks: "range | list[int]") -> tuple[Tensor, Tensor]:
    opened = [store.chunk(number) for number in chunks]
    return torch.cat([chunk.tensor("node_ids") for chunk in opened]), torch.cat(
        [chunk.tensor("id_names") for chunk in opened]
    )


def _names_of(numbers: Tensor, known: Tensor, names: NDArray[Any]) -> NDArray[Any]:
    """Returns the names of these numbers, for names that stand beside the numbers `known`; empty for other numbers."""
    ordered, order = torch.sort(known)
    places = torch.searchsorted(ordered, numbers).clamp(max=len(known) - 1)
    found = np.asarray(names[order[places].numpy()])
    found[(ordered[places] != numbers).numpy()] = np.zeros((), found.dtype)
    return found
