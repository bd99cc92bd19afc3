"""Kernels that give nodes to parts: one after the other by a score, by hash, or away from parts that are too heavy."""

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import serial_kernel
from laconic.kernels.keyed import mix64

Ints = NDArray[np.integer]
Floats = NDArray[np.float64]


@serial_kernel
def hash_parts(key: np.uint64, node_ids: Ints, num_parts: int, out: NDArray[np.int32]) -> None:
    """Writes the part of each node: a keyed hash of its id, as even as chance."""
    for node in range(len(node_ids)):
        high_half = mix64(key, np.uint64(node_ids[node])) >> np.uint64(32)
        out[node] = np.int32((high_half * np.uint64(num_parts)) >> np.uint64(32))


@serial_kernel
def stream_parts(
    order: Ints,
    indptr: Ints,
    indices: Ints,
    reverse_indptr: Ints,
    reverse_indices: Ints,
    gain: Floats,
    price: Floats,
    num_parts: int,
    num_passes: int,
    parts: NDArray[np.int32],
) -> None:
    """Writes the part of each node, met in `order`: the one with room of highest links * gain[size] - price[size].

    `links` are the node's edges to nodes already in the part, by both directions (leave the reverse rows empty where
    the graph is symmetric). Sizes go up to len(gain): a part of that size is full. Each pass fills the parts anew; from
    the second one on, neighbours not met yet count where they were before. Ties go to the smaller part.
    """
    links = np.zeros(num_parts, np.int64)
    met = np.empty(num_parts, np.int64)
    for _ in range(num_passes):
        sizes = np.zeros(num_parts, np.int64)
        # Parts in ascending order of size, so that the smallest is found at once however many there are;
        # those larger than s begin at first_above[s].
        by_size = np.arange(num_parts)
        place = np.arange(num_parts)
        first_above = np.full(len(gain) + 1, num_parts)
        for node in order:
            num_met = _count_links(node, indptr, indices, parts, links, met, 0)
            if len(reverse_indptr):
                num_met = _count_links(node, reverse_indptr, reverse_indices, parts, links, met, num_met)
            best = by_size[0]
            best_score = links[best] * gain[sizes[best]] - price[sizes[best]]
            for k in range(num_met):
                part = met[k]
                size = sizes[part]
                if size < len(gain):
                    score = links[part] * gain[size] - price[size]
                    if score > best_score or (score == best_score and size < sizes[best]):
                        best, best_score = part, score
            for k in range(num_met):
                links[met[k]] = 0
            parts[node] = best
            _grow(best, sizes, by_size, place, first_above)


@serial_kernel
def _count_links(node, indptr, indices, parts, links, met, num_met):
    for edge in range(indptr[node], indptr[node + 1]):
        other = indices[edge]
        part = parts[other]
        if part >= 0 and other != node:
            if links[part] == 0:
                met[num_met] = part
                num_met += 1
            links[part] += 1
    return num_met


@serial_kernel
def _grow(part, sizes, by_size, place, first_above):
    # The part becomes the last one of its size, then the first one of the next.
    first_above[sizes[part]] -= 1
    position = first_above[sizes[part]]
    other = by_size[position]
    by_size[place[part]], place[other] = other, place[part]
    by_size[position], place[part] = part, position
    sizes[part] += 1


@serial_kernel
def fill_lightest(nodes: Ints, weights: Ints, loads: Ints, parts: NDArray[np.int32]) -> None:
    """Gives each of `nodes` to the part that is lightest by then."""
    for node in nodes:
        part = np.argmin(loads)
        parts[node] = part
        loads[part] += weights[node]


@serial_kernel
def hold_of_part(indptr: Ints, indices: Ints, parts: NDArray[np.int32]) -> Ints:
    """How strongly its part holds each node: neighbours in it, less those in the other part with most of them."""
    num_parts = parts.max() + 1
    links = np.zeros(num_parts, np.int64)
    met = np.empty(num_parts, np.int64)
    hold = np.empty(len(parts), np.int64)
    for node in range(len(parts)):
        num_met = _count_links(node, indptr, indices, parts, links, met, 0)
        most = 0
        for k in range(num_met):
            if met[k] != parts[node]:
                most = max(most, links[met[k]])
        hold[node] = links[parts[node]] - most
        for k in range(num_met):
            links[met[k]] = 0
    return hold


@serial_kernel
def unload_parts(
    order: Ints, indptr: Ints, indices: Ints, weights: Ints, limit: int, loads: Ints, parts: NDArray[np.int32]
) -> None:
    """Moves nodes, met in `order`, out of parts heavier than `limit`, to the part with room and most links to them.

    Ends with no part above `limit` where that is at least the mean load plus the heaviest node.
    """
    links = np.zeros(len(loads), np.int64)
    met = np.empty(len(loads), np.int64)
    for node in order:
        old = parts[node]
        if loads[old] <= limit:
            continue
        best = np.argmin(loads)
        num_met = _count_links(node, indptr, indices, parts, links, met, 0)
        for k in range(num_met):
            part = met[k]
            if loads[part] + weights[node] <= limit and links[part] > links[best]:
                best = part
        for k in range(num_met):
            links[met[k]] = 0
        parts[node] = best
        loads[old] -= weights[node]
        loads[best] += weights[node]
