"""Dropout whose mask is a function of a key: no mask is stored, backward computes it again from the same key."""

import numba

from laconic.kernels.compile import parallel_kernel
from laconic.kernels.keyed import edge_key, is_kept, node_key


@parallel_kernel
def drop_node_rows(x, out, node_ids, key, threshold, scale):
    """out = x * scale where kept, else 0; element (i, f) is decided by (key, node_ids[i], f)."""
    for i in numba.prange(x.shape[0]):
        row_key = node_key(key, node_ids[i])
        for f in range(x.shape[1]):
            out[i, f] = x[i, f] * scale if is_kept(row_key, f, threshold) else 0


@parallel_kernel
def drop_edge_rows(x, out, sources, destinations, key, threshold, scale):
    """out = x * scale where kept, else 0; element (e, f) is decided by (key, end points of edge e, f)."""
    for e in numba.prange(x.shape[0]):
        row_key = edge_key(key, sources[e], destinations[e])
        for f in range(x.shape[1]):
            out[e, f] = x[e, f] * scale if is_kept(row_key, f, threshold) else 0
