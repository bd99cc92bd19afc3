"""The order of the nodes within their chunk. Neighbours with near numbers share cache lines, so products run faster.

none: as in the source graph. degree: most edges first. bfs: breadth-first from the best connected node.
rcm: reverse Cuthill-McKee, the narrowest band of the three.
"""

from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.graph.neighbours import plain_neighbours
from laconic.kernels.node_order import breadth_first
from laconic.specs import unknown_name

Reorder = Literal["none", "degree", "bfs", "rcm"]
REORDERS: tuple[str, ...] = get_args(Reorder)


def check_reorder(name: str) -> Reorder:
    """Returns `name` if it is a node order; else raises ConfigError with the choices."""
    if name not in REORDERS:
        raise ConfigError(unknown_name(name, REORDERS, family="node order"))
    return cast(Reorder, name)


def order_nodes(graph: Graph, parts: NDArray[np.integer], reorder: Reorder) -> NDArray[np.int64]:
    """Returns the graph's nodes part by part, in the order that they have within their chunk."""
    if check_reorder(reorder) == "none":
        return np.argsort(parts, kind="stable")
    indptr, indices = plain_neighbours(graph.adjacency)
    degrees = np.diff(indptr)
    best_first: NDArray[np.int64] = np.lexsort((-degrees, parts))
    if reorder == "degree":
        return best_first
    if reorder == "bfs":
        by_breadth: NDArray[np.int64] = breadth_first(best_first, indptr, indices, parts, degrees, False)
        return by_breadth
    order: NDArray[np.int64] = breadth_first(np.lexsort((degrees, parts)), indptr, indices, parts, degrees, True)
    sizes = np.bincount(parts)
    ends = np.cumsum(sizes)
    own_part = parts[order]
    order[ends[own_part] - 1 - (np.arange(len(order)) - (ends - sizes)[own_part])] = order.copy()
    return order
