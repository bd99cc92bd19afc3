"""What the streaming partitioners share: the order of the nodes, the size at which a part is full, and the passes.

A member gives its score alone, as two tables over the size of a part: links * gain[size] - price[size].
Needs a few numbers per node and part beside the graph's own rows.
"""

import numpy as np
from numpy.typing import NDArray

from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.graph.neighbours import missing_directions
from laconic.kernels.stream_parts import stream_parts
from laconic.kernels.undirected import count_self_loops, is_symmetric
from laconic.partitioners.base import Parts

Table = NDArray[np.float64]
ORDERS = ("random", "given")


def check_stream(name: str, slack: float, passes: int, order: str) -> None:
    """Raises ConfigError unless the settings that all streaming partitioners have make sense."""
    if not slack >= 1:
        raise ConfigError(
            f"partitioner {name}: slack should be 1 or more (1.05 lets a part be 5% too large), got {slack}."
        )
    if passes < 1:
        raise ConfigError(f"partitioner {name}: passes should be 1 or more, got {passes}.")
    if order not in ORDERS:
        raise ConfigError(f"partitioner {name}: order should be one of {', '.join(ORDERS)}; got {order!r}.")


def full_size(num_nodes: int, num_parts: int, slack: float) -> int:
    """Returns the number of nodes at which a part is full; all parts together hold at least `num_nodes`."""
    return max(-(-num_nodes // num_parts), int(slack * num_nodes / num_parts))


def num_links(graph: Graph) -> int:
    """Returns the number of edges between different nodes; where every edge has its reverse, the number of pairs."""
    rows = graph.adjacency
    links = rows.num_edges - int(count_self_loops(rows.indptr, rows.indices))
    return links // 2 if is_symmetric(rows.indptr, rows.indices) else links


def stream(
    graph: Graph,
    num_parts: int,
    rng: np.random.Generator,
    *,
    gain: Table,
    price: Table,
    passes: int,
    order: str,
) -> Parts:
    """Returns the part of each node after `passes` passes; `gain` and `price` have an entry per size below full."""
    rows = graph.adjacency
    nodes = rng.permutation(graph.num_nodes) if order == "random" else np.arange(graph.num_nodes)
    reverse_indptr, reverse_indices = missing_directions(rows)
    parts = np.full(graph.num_nodes, -1, np.int32)
    stream_parts(
        nodes, rows.indptr, rows.indices, reverse_indptr, reverse_indices, gain, price, num_parts, passes, parts
    )
    return fill_empty_parts(parts, num_parts)


def fill_empty_parts(parts: Parts, num_parts: int) -> Parts:
    """Returns `parts` with one node moved into each empty part, from the largest ones, while nodes last."""
    sizes = np.bincount(parts, minlength=num_parts)
    empty = np.flatnonzero(sizes == 0).astype(np.int32)
    if len(empty) == 0:
        return parts
    by_part = np.argsort(parts, kind="stable")
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(parts)) - starts[parts[by_part]]
    # Each part keeps its first node; those at the highest places are in the largest parts.
    spare = by_part[np.argsort(-place, kind="stable")][: np.count_nonzero(place > 0)][: len(empty)]
    filled = parts.copy()
    filled[spare] = empty[: len(spare)]
    return filled
