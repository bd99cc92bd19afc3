"""What a graph, and a partition of it, look like in numbers: for tables, the planner and reports.

GraphStats.of(graph).homophily
PartitionStats.of(graph, parts, num_parts=8).cut_share
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.graph.graph import Graph
from laconic.kernels.part_counts import count_by_part, count_edges
from laconic.kernels.undirected import is_symmetric


@final
@dataclass(frozen=True)
class GraphStats:
    """Sizes and shape of one graph.

    Args:
        num_isolated: nodes that neither send to nor receive from another node.
        num_duplicates: edges that repeat an earlier one.
        max_degree, mean_degree: edges that arrive at a node.
        is_symmetric: every edge has its reverse, equally often.
        homophily: share of the edges between labelled nodes that join two of one class; None where there are none, or
            where nodes have several labels.
        split_origin, class_names: as in Graph.
        has_text_ids: the ids of the nodes are text.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    is_multilabel: bool
    num_isolated: int
    num_self_loops: int
    num_duplicates: int
    max_degree: int
    mean_degree: float
    is_symmetric: bool
    homophily: float | None
    num_train: int
    num_val: int
    num_test: int
    split_origin: str
    has_text_ids: bool
    class_names: tuple[str, ...]

    @staticmethod
    def of(graph: Graph) -> "GraphStats":
        """Counts `graph`, in one pass over its edges."""
        rows = graph.adjacency
        labels = np.full(graph.num_nodes, -1) if graph.is_multilabel else graph.y.numpy()
        loops, duplicates, isolated, labelled, alike = count_edges(rows.indptr, rows.indices, labels)
        return GraphStats(
            name=graph.name,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            num_features=graph.num_features,
            num_classes=graph.num_classes,
            is_multilabel=graph.is_multilabel,
            num_isolated=int(isolated),
            num_self_loops=int(loops),
            num_duplicates=int(duplicates),
            max_degree=int(rows.row_degrees.max()),
            mean_degree=graph.num_edges / graph.num_nodes,
            is_symmetric=bool(is_symmetric(rows.indptr, rows.indices)),
            homophily=alike / labelled if labelled else None,
            **{f"num_{split}": count for split, count in graph.num_of_split.items()},
            split_origin=graph.split_origin,
            has_text_ids=graph.id_names is not None,
            class_names=graph.class_names,
        )


@final
@dataclass(frozen=True)
class PartitionStats:
    """What each part holds and what it needs from the others; one number per part.

    Args:
        num_nodes, num_train: nodes of the part, and those in the training split.
        num_edges: edges that arrive at the part's nodes: the work of the rank that owns it.
        num_cut_edges: those of them that come from another part.
        num_halo_rows: distinct nodes of other parts that they come from: rows to receive, once per exchange.
    """

    num_nodes: tuple[int, ...]
    num_train: tuple[int, ...]
    num_edges: tuple[int, ...]
    num_cut_edges: tuple[int, ...]
    num_halo_rows: tuple[int, ...]

    @staticmethod
    def of(graph: Graph, parts: NDArray[np.integer], num_parts: int) -> "PartitionStats":
        """Counts what `parts`, the part of each node, does to `graph`, in one pass over its edges."""
        rows = graph.adjacency
        edges, cut, halo = count_by_part(rows.indptr, rows.indices, parts, num_parts)
        return PartitionStats(
            num_nodes=_numbers(np.bincount(parts, minlength=num_parts)),
            num_train=_numbers(np.bincount(parts[graph.train_mask.numpy()], minlength=num_parts)),
            num_edges=_numbers(edges),
            num_cut_edges=_numbers(cut),
            num_halo_rows=_numbers(halo),
        )

    @property
    def num_parts(self) -> int:
        return len(self.num_nodes)

    @property
    def cut_share(self) -> float:
        """The share of all edges that join two parts."""
        return sum(self.num_cut_edges) / max(1, sum(self.num_edges))


def _numbers(counts: NDArray[np.integer]) -> tuple[int, ...]:
    return tuple(int(count) for count in counts)
