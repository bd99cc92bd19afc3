"""The ids of rows that ranks hold, as they are in the data: numbers, or text where the data has text."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm import Communicator
from laconic.comm.gather import gather_rows
from laconic.graph import Graph, Shard
from laconic.graph.id_names import decode_names
from laconic.halo.placement import ChunkMap
from laconic.store import Store

# Shapes: N nodes, B bytes of the longest id


def gather_ids(data: Graph | Store, shard: Shard, communicator: Communicator) -> tuple[Tensor, NDArray[Any]]:
    """Returns the numbers and the ids of all ranks' rows, (N,) each, on rank 0, and none on others.

    Traffic: the numbers; where each rank has read its own chunks of a store with text ids, also these.
    """
    numbers = gather_rows(communicator, shard.node_ids, root=0)
    if isinstance(data, Graph):
        return numbers, numbers.numpy() if data.id_names is None else _names_in(data, data.id_names, numbers)
    if not data.manifest.has_id_names:
        return numbers, numbers.numpy()
    return numbers, decode_names(gather_rows(communicator, _own_names(data, shard, communicator), root=0))


def _names_in(graph: Graph, names: NDArray[np.str_], numbers: Tensor) -> NDArray[np.str_]:
    ordered, order = torch.sort(graph.node_ids)
    rows: NDArray[np.int64] = order[torch.searchsorted(ordered, numbers)].numpy()
    return np.asarray(names[rows])


def _own_names(store: Store, shard: Shard, communicator: Communicator) -> Tensor:
    """Returns the text of each row of this rank, as bytes: its chunks' one after the other, as their rows stand."""
    sizes = [chunk.num_nodes for chunk in store.manifest.chunks]
    own = [store.chunk(number) for number in ChunkMap.even(sizes, communicator.num_ranks).chunks_of(communicator.rank)]
    assert torch.equal(torch.cat([chunk.tensor("node_ids") for chunk in own]), shard.node_ids), "rows by chunk"
    return torch.cat([chunk.tensor("id_names") for chunk in own])
