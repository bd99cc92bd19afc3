"""Vertex covers of a bipartite graph: the fewest vertices that touch every edge.

    |smallest cover| = |largest matching|                                                            (Koenig, 1931)

A matching is a set of edges without a common vertex; each of them needs a cover vertex of its own, so no cover is
smaller than any matching. Edges are compressed rows by destination: the sources of destination v are
`indices[indptr[v]:indptr[v + 1]]`. Repeated edges change no size.

Inside, one number names a vertex: sources are 0 .. S - 1, destinations S .. S + D - 1. `match[vertex]` is its partner
in the matching, or -1.
"""

import numpy as np
from numpy.typing import NDArray

from laconic.kernels.compile import inline_kernel, serial_kernel
from laconic.kernels.compress import index_dtype

Ints = NDArray[np.integer]
Mask = NDArray[np.bool_]

# Turns of shortest paths alone. Most graphs need fewer turns. A torus of a million nodes needed hundreds, but 27 with
# paths of any length from here on; such turns take longer (Duff and Wiberg, ACM TOMS 1988).
_PATIENCE = 16
# In place of a level: paths of any length, and a source that is on one.
_ANY, _MET = -2, -3


def minimum_cover(indptr: NDArray[np.int64], indices: Ints, num_sources: int) -> tuple[Mask, Mask]:
    """Returns a smallest cover, as masks of the destinations (D,) and the sources (S,) that are in it.

    Of all smallest covers, the one with the fewest destinations: there is one such cover, and the order of the edges
    does not matter. It has no destination where no cover is smaller than all sources that have an edge.

    Hopcroft and Karp, SIAM J. Comput. 1973: O(edges * sqrt(vertices)), from the matching of `greedy_cover`.
    """
    rows = _both_directions(indptr, indices, num_sources)
    match, _ = _greedy(*rows, num_sources)
    is_reached = _enlarge(rows[0], rows[1], match)
    partners = match[:num_sources]
    is_summed = np.zeros(len(indptr) - 1, bool)
    is_summed[partners[is_reached & (partners >= 0)] - num_sources] = True
    return is_summed, ~is_reached


def greedy_cover(indptr: NDArray[np.int64], indices: Ints, num_sources: int) -> tuple[Mask, Mask, int]:
    """Returns a small cover, as masks of its destinations (D,) and sources (S,), and how many vertices any cover needs.

    In time and memory linear in the edges. Never larger than all sources that have an edge, nor than all destinations
    that have one. Sorted rows of the same edges give the same cover.
    """
    rows = _both_directions(indptr, indices, num_sources)
    match, is_covered = _greedy(*rows, num_sources)
    bound = int((match[:num_sources] >= 0).sum())
    has_edge = np.concatenate([np.diff(rows[0]), np.diff(rows[2])]) > 0
    is_source = np.arange(len(match)) < num_sources
    # The first of the smallest: where nothing is gained, no destination.
    best = min((has_edge & is_source, is_covered, has_edge & ~is_source), key=np.count_nonzero)
    return best[num_sources:], best[:num_sources], bound


def _both_directions(indptr: NDArray[np.int64], indices: Ints, num_sources: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns the edges by source and by destination, each as (starts, other ends); vertices have one number each."""
    num_destinations = len(indptr) - 1
    dtype = index_dtype(max(num_sources + num_destinations, len(indices)))
    # Numba compiles once more for what may not be written to; such arrays are copied.
    starts, sources = np.require(indptr, np.int64, ["C", "W"]), np.require(indices, dtype, ["C", "W"])
    by_source, destinations = np.zeros(num_sources + 1, np.int64), np.empty_like(sources)
    _transpose(starts, sources, by_source, destinations)
    return by_source, destinations, starts, sources


@serial_kernel
def _transpose(starts, sources, by_source, destinations):
    num_sources = len(by_source) - 1
    for source in sources:
        by_source[source + 1] += 1
    for source in range(num_sources):
        by_source[source + 1] += by_source[source]
    cursor = by_source[:-1].copy()
    for row in range(len(starts) - 1):
        for edge in range(starts[row], starts[row + 1]):
            destinations[cursor[sources[edge]]] = num_sources + row
            cursor[sources[edge]] += 1


@inline_kernel
def _neighbours(vertex, by_source, destinations, by_destination, sources, num_sources):
    if vertex < num_sources:
        return destinations[by_source[vertex] : by_source[vertex + 1]]
    row = vertex - num_sources
    return sources[by_destination[row] : by_destination[row + 1]]


@serial_kernel
def _most_first(counts):
    """Returns the positions of `counts`, those of the largest first, equal ones in order: a counting sort."""
    largest = 0
    for count in counts:
        largest = max(largest, count)
    starts = np.zeros(largest + 1, np.int64)
    for count in counts:
        starts[count] += 1
    total = 0
    for count in range(len(starts) - 1, -1, -1):
        starts[count], total = total, total + starts[count]
    order = np.empty_like(counts)
    for position in range(len(counts)):
        count = counts[position]
        order[starts[count]] = position
        starts[count] += 1
    return order


@serial_kernel
def _greedy(by_source, destinations, by_destination, sources, num_sources):
    """Returns (match, is_covered): a matching that no edge can be added to, and a cover.

    A vertex with one edge left never needs to be in a cover: its neighbour serves that edge, and perhaps more (Karp and
    Sipser, 1981). Where each vertex has more, the one that had most edges at first is taken. A vertex taken is matched
    with the neighbour that has fewest edges left: it will find it hardest to be matched later.
    """
    num_vertices = num_sources + len(by_destination) - 1
    match = np.full(num_vertices, -1, sources.dtype)
    # Edges that have no end in the cover yet; -1 for a vertex in the cover.
    left = np.empty(num_vertices, sources.dtype)
    left[:num_sources] = np.diff(by_source)
    left[num_sources:] = np.diff(by_destination)
    order = _most_first(left)
    leaves = np.empty(num_vertices, sources.dtype)
    num_leaves = 0
    for vertex in range(num_vertices):
        if left[vertex] == 1:
            leaves[num_leaves] = vertex
            num_leaves += 1
    position = 0
    while num_leaves > 0 or position < num_vertices:
        if num_leaves > 0:
            num_leaves -= 1
            taken = leaves[num_leaves]
            if left[taken] != 1:
                continue
            for other in _neighbours(taken, by_source, destinations, by_destination, sources, num_sources):
                if left[other] >= 0:
                    taken = other
                    break
        else:
            taken = order[position]
            position += 1
            if left[taken] <= 0:
                continue
        left[taken] = -1
        is_matched = match[taken] >= 0
        for other in _neighbours(taken, by_source, destinations, by_destination, sources, num_sources):
            # A neighbour in the cover cannot be matched with this vertex: it would have been when it was taken.
            if left[other] >= 0:
                left[other] -= 1
                if left[other] == 1:
                    leaves[num_leaves] = other
                    num_leaves += 1
                is_fewer = match[taken] < 0 or left[other] < left[match[taken]]
                if not is_matched and is_fewer and match[other] < 0:
                    match[taken] = other
        if not is_matched and match[taken] >= 0:
            match[match[taken]] = taken
    return match, left < 0


@serial_kernel
def _enlarge(by_source, destinations, match):
    """Makes `match` as large as can be; returns which sources alternating paths reach from unmatched sources, (S,).

    An alternating path takes any edge to a destination and the matched edge on from there. If it ends at an unmatched
    destination, swapping its edges enlarges the matching by one. Each turn swaps along shortest paths without a common
    vertex; after _PATIENCE turns also along longer ones.
    """
    num_sources = len(by_source) - 1
    level = np.empty(num_sources, match.dtype)
    path = np.empty(num_sources, match.dtype)
    cursor = np.empty(num_sources, np.int64)
    turns = 0
    while True:
        last_level = _find_levels(by_source, destinations, match, level, path)
        if last_level < 0:
            return level >= 0
        turns += 1
        _swap_paths(by_source, destinations, match, level, last_level, path, cursor)
        if turns > _PATIENCE:
            _swap_paths(by_source, destinations, match, level, _ANY, path, cursor)


@serial_kernel
def _swap_paths(by_source, destinations, match, level, last_level, path, cursor):
    """Enlarges the matching along paths without a common vertex: each goes from level to level, or is of _ANY length.

    Paths of any length overwrite the levels with _MET.
    """
    cursor[:] = by_source[:-1]
    for root in range(len(level)):
        if match[root] >= 0:
            continue
        path[0], depth = root, 0
        while depth >= 0:
            source = path[depth]
            if cursor[source] == by_source[source + 1]:
                depth -= 1
                continue
            partner = match[destinations[cursor[source]]]
            cursor[source] += 1
            if partner < 0:
                for step in range(depth + 1):
                    source = path[step]
                    destination = destinations[cursor[source] - 1]
                    match[source] = destination
                    match[destination] = source
                break
            if last_level == _ANY:
                goes_on = level[partner] != _MET
                level[partner] = _MET
            else:
                goes_on = level[source] < last_level and level[partner] == level[source] + 1
            if goes_on:
                depth += 1
                path[depth] = partner


@serial_kernel
def _find_levels(by_source, destinations, match, level, queue):
    """Writes how many matched edges lead from an unmatched source to each source, -1 for none.

    Returns the level of the nearest source with an unmatched destination, and goes no further; -1 if there is none.
    """
    tail = 0
    for source in range(len(level)):
        level[source] = -1
        if match[source] < 0:
            level[source] = 0
            queue[tail] = source
            tail += 1
    head = 0
    while head < tail:
        source = queue[head]
        head += 1
        for edge in range(by_source[source], by_source[source + 1]):
            partner = match[destinations[edge]]
            if partner < 0:
                return level[source]
            if level[partner] < 0:
                level[partner] = level[source] + 1
                queue[tail] = partner
                tail += 1
    return np.int64(-1)
