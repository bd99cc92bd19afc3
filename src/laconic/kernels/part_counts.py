"""What a graph's compressed rows and a partition of its nodes count up to: one pass over the edges each."""

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import serial_kernel


@serial_kernel
def count_edges(
    indptr: NDArray[np.int64], indices: NDArray[np.integer], labels: NDArray[np.int64]
) -> tuple[int, int, int, int, int]:
    """(self-loops, repeated edges, isolated nodes, edges between labelled nodes, those whose ends have one label).

    Rows are sorted; a label of -1 is none; self-loops do not count for the last two, nor save a node from isolation.
    """
    num_nodes = len(indptr) - 1
    is_connected = np.zeros(num_nodes, np.bool_)
    loops, repeated, labelled, alike = 0, 0, 0, 0
    for row in range(num_nodes):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            if edge > indptr[row] and indices[edge - 1] == source:
                repeated += 1
            if source == row:
                loops += 1
                continue
            is_connected[row] = True
            is_connected[source] = True
            if labels[row] >= 0 and labels[source] >= 0:
                labelled += 1
                alike += labels[row] == labels[source]
    return loops, repeated, num_nodes - is_connected.sum(), labelled, alike


@serial_kernel
def count_by_part(
    indptr: NDArray[np.int64], indices: NDArray[np.integer], parts: NDArray[np.integer], num_parts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(edges, cut edges, halo rows) of each part: edges that arrive, those from elsewhere, their distinct sources."""
    num_nodes = len(indptr) - 1
    starts = np.zeros(num_parts + 1, np.int64)
    for part in parts:
        starts[part + 1] += 1
    starts = np.cumsum(starts)
    nodes = np.empty(num_nodes, np.int64)
    for node in range(num_nodes):
        nodes[starts[parts[node]]] = node
        starts[parts[node]] += 1
    edges = np.zeros(num_parts, np.int64)
    cut = np.zeros(num_parts, np.int64)
    halo = np.zeros(num_parts, np.int64)
    # Part by part, so that one mark per node says whether this part has met it already.
    met_by = np.full(num_nodes, -1, np.int32)
    for row in nodes:
        part = parts[row]
        edges[part] += indptr[row + 1] - indptr[row]
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            if parts[source] != part:
                cut[part] += 1
                if met_by[source] != part:
                    met_by[source] = part
                    halo[part] += 1
    return edges, cut, halo
