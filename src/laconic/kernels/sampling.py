"""Draws neighbours without replacement. Serial: worker threads draw batches side by side, without the Python lock.

What is drawn for a node depends on a key and the node's number alone, so it is the same whichever thread draws it.
"""

import numpy as np

from laconic.kernels.compile import inline_kernel, serial_kernel
from laconic.kernels.keyed import mix64, node_key

_HALF_WORD = np.uint64(32)
# So few are compared one by one faster than by a hash table.
_FEW = 32


@inline_kernel
def _draw_below(key, counter, limit):
    """A number in 0 .. limit - 1; the bias is below limit / 2**32."""
    return np.int64(((mix64(key, np.uint64(counter)) >> _HALF_WORD) * np.uint64(limit)) >> _HALF_WORD)


@serial_kernel
def expand_nodes(indptr, indices, nodes, fanout, key, local_of, num_known):
    """Draws up to `fanout` in-neighbours of each of `nodes` (all of them if it is negative).

    Args:
        nodes: numbers of the nodes to expand.
        local_of: for every node of the graph its local number, or -1; nodes met here for the first time get the next.
        num_known: how many local numbers are taken.

    Returns:
        starts: where the edges of each expanded node start, (len(nodes) + 1,).
        edges: position of each drawn edge in `indices`, ascending for each node.
        new_nodes: nodes met for the first time, in the order of their local numbers.
    """
    starts = np.zeros(len(nodes) + 1, np.int64)
    for i in range(len(nodes)):
        degree = indptr[nodes[i] + 1] - indptr[nodes[i]]
        starts[i + 1] = starts[i] + (degree if fanout < 0 else min(degree, fanout))
    edges = np.empty(starts[-1], np.int64)
    new_nodes = np.empty(starts[-1], np.int64)
    num_new = 0
    for i in range(len(nodes)):
        first = indptr[nodes[i]]
        degree = indptr[nodes[i] + 1] - first
        drawn = edges[starts[i] : starts[i + 1]]
        if len(drawn) == degree:
            for k in range(degree):
                drawn[k] = first + k
        else:
            if len(drawn) <= _FEW:
                _draw_few(node_key(key, nodes[i]), degree, drawn)
            else:
                _draw_many(node_key(key, nodes[i]), degree, drawn)
            drawn.sort()
            for k in range(len(drawn)):
                drawn[k] += first
        for edge in drawn:
            source = indices[edge]
            if local_of[source] < 0:
                local_of[source] = num_known + num_new
                new_nodes[num_new] = source
                num_new += 1
    return starts, edges, new_nodes[:num_new].copy()


@inline_kernel
def _draw_few(key, degree, drawn):
    # Floyd's algorithm: each subset is equally likely, in time that does not depend on the degree.
    count = len(drawn)
    for k in range(count):
        top = degree - count + k
        position = _draw_below(key, k, top + 1)
        for earlier in range(k):
            if drawn[earlier] == position:
                position = top
                break
        drawn[k] = position


@serial_kernel
def _draw_many(key, degree, drawn):
    """The same draws as `_draw_few`, in time linear in their number: it looks for equal ones in a hash table."""
    count = len(drawn)
    size = 4 * _FEW
    while size < 2 * count:
        size *= 2
    table = np.full(size, -1, np.int64)
    for k in range(count):
        top = degree - count + k
        position = _draw_below(key, k, top + 1)
        slot = _find_slot(table, position)
        if table[slot] == position:
            position = top
            slot = _find_slot(table, position)
        table[slot] = position
        drawn[k] = position


@inline_kernel
def _find_slot(table, position):
    """Where `position` stands in an open-addressed hash table of a power of two slots, or the free slot for it."""
    slot = np.int64(mix64(np.uint64(0), np.uint64(position)) & np.uint64(len(table) - 1))
    while table[slot] != -1 and table[slot] != position:
        slot = (slot + 1) & (len(table) - 1)
    return slot
