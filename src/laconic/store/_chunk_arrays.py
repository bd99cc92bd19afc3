"""From a graph and its parts to the arrays of each chunk, one chunk at a time. Knows no files."""

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.graph.id_names import encode_names
from laconic.kernels.compress import compress_edges
from laconic.store.layout import FeatureDtype, check_features_dtype, dtype_name, torch_dtype
from laconic.store.reorder import Reorder, order_nodes

Arrays = dict[str, NDArray[Any] | Tensor]

_INT32_LIMIT = 2**31 - 1


@final
class ChunkArrays:
    """Cuts a graph into chunks; needs a few numbers per node, and one chunk's arrays at a time, beside the graph."""

    def __init__(
        self,
        graph: Graph,
        parts: NDArray[np.integer],
        num_parts: int,
        features: FeatureDtype | None,
        reorder: Reorder,
    ) -> None:
        _check(graph, parts, num_parts, features)
        self._graph = graph
        self._parts = parts.astype(np.int32, copy=False)
        self._sizes = np.bincount(self._parts, minlength=num_parts)
        self._dtype = graph.x.dtype if features is None else torch_dtype(features)
        self._order = order_nodes(graph, self._parts, reorder)
        self._starts = np.append(0, np.cumsum(self._sizes))
        self._local = np.empty(graph.num_nodes, np.int32)
        self._local[self._order] = np.arange(graph.num_nodes) - np.repeat(self._starts[:-1], self._sizes)
        self._id_names = None if graph.id_names is None else encode_names(graph.id_names)
        self._out_degrees = np.bincount(graph.edge_index[0].numpy(), minlength=graph.num_nodes)

    def of_chunk(self, number: int) -> Arrays:
        """Returns the arrays of one chunk by name; `Chunk` says what each is."""
        rows = self._order[self._starts[number] : self._starts[number + 1]]
        graph, chosen = self._graph, torch.from_numpy(rows)
        return {
            "rows": rows,
            "node_ids": graph.node_ids[chosen],
            **({} if self._id_names is None else {"id_names": self._id_names[chosen]}),
            "x": self._features(chosen),
            "y": graph.y[chosen],
            "train_mask": graph.train_mask[chosen],
            "val_mask": graph.val_mask[chosen],
            "test_mask": graph.test_mask[chosen],
            "in_degree": graph.adjacency.row_degrees[rows].astype(np.int32),
            "out_degree": self._out_degrees[rows].astype(np.int32),
            **self._edges(number, rows),
        }

    def _features(self, rows: Tensor) -> Tensor:
        x = self._graph.x[rows].to(self._dtype)
        if self._dtype != self._graph.x.dtype and not bool(torch.isfinite(x).all()):
            node, feature = (int(k) for k in (~torch.isfinite(x)).nonzero()[0])
            value, largest = float(self._graph.x[rows[node], feature]), torch.finfo(self._dtype).max
            raise ConfigError(
                f"{self._graph.name}: feature {feature} of node {int(rows[node])} is {value:g}, too large for "
                f"{dtype_name(self._dtype)} (at most {largest:g}). Scale the features, or store them as bfloat16 "
                f"or float32."
            )
        return x

    def _edges(self, number: int, rows: NDArray[np.int64]) -> Arrays:
        adjacency, num_rows = self._graph.adjacency, len(rows)
        degrees = adjacency.row_degrees[rows]
        destination = np.repeat(np.arange(num_rows, dtype=np.int32), degrees)
        # Where each edge that arrives at one of `rows` stands in the graph's adjacency, row by row.
        first = np.cumsum(degrees) - degrees
        position = np.arange(len(destination)) + (adjacency.indptr[rows] - first)[destination]
        source = adjacency.indices[position]
        source_part, source_local = self._parts[source], self._local[source]
        weight = self._weights(position)

        arrays: Arrays = {}
        is_intra = source_part == number
        indptr, indices, order = compress_edges(source_local[is_intra], destination[is_intra], num_rows, num_rows)
        arrays |= {"intra_indptr": indptr, "intra_indices": indices}
        if weight is not None:
            sums = torch.zeros(num_rows, dtype=torch.float64)
            arrays["in_weight"] = sums.index_add_(0, torch.from_numpy(destination), weight.double())
            arrays["intra_weight"] = weight[torch.from_numpy(np.flatnonzero(is_intra)[order])]

        bridge = np.flatnonzero(~is_intra)
        block = source_part[bridge] * np.int64(num_rows) + destination[bridge]
        # One counting sort by (source chunk, destination), another by source: linear, and equal edges keep their order.
        order = compress_edges(source_local[bridge], block, len(self._sizes) * num_rows, int(self._sizes.max()))[2]
        bridge = bridge[order]
        counts = np.bincount(source_part[bridge], minlength=len(self._sizes))
        arrays |= {
            "bridge_ptr": np.append(0, np.cumsum(counts)),
            "bridge_src": source_local[bridge],
            "bridge_dst": destination[bridge],
        }
        if weight is not None:
            arrays["bridge_weight"] = weight[torch.from_numpy(bridge)]
        return arrays

    def _weights(self, position: NDArray[np.int64]) -> Tensor | None:
        weight, order = self._graph.edge_weight, self._graph.adjacency.edge_order
        if weight is None:
            return None
        return weight[torch.from_numpy(position if order is None else order[position].astype(np.int64))]


def _check(graph: Graph, parts: NDArray[np.integer], num_parts: int, features: str | None) -> None:
    if parts.shape != (graph.num_nodes,) or not np.issubdtype(parts.dtype, np.integer):
        raise ConfigError(
            f"{graph.name}: parts should be whole numbers of length {graph.num_nodes}, one per node, got "
            f"{parts.dtype} of shape {parts.shape}."
        )
    if int(parts.min()) < 0 or int(parts.max()) >= num_parts:
        raise ConfigError(
            f"{graph.name}: parts should lie between 0 and {num_parts - 1}, but go from {parts.min()} to {parts.max()}."
        )
    if int(np.bincount(parts).max()) > _INT32_LIMIT:
        raise ConfigError(f"{graph.name}: a part has more than {_INT32_LIMIT} nodes. Use more parts.")
    check_features_dtype(features)
