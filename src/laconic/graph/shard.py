"""Shard: what one rank trains on. On one machine it is the whole graph; a mini-batch is a shard too."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.graph import Graph

# Shapes: N rows, E edges, F features


@final
@dataclass(frozen=True, eq=False)
class Shard:
    """Rows of nodes and the edges that arrive at them.

    Sources of edges are numbered with the rows first; where other ranks own a part of the graph, the halo follows:
    nodes whose rows have to be fetched from there.

    Args:
        x: features of the rows held here, as in Graph: the owned rows, and behind them rows of other nodes that are
            computed here too, where there are such.
        y, train_mask, val_mask, test_mask: as in Graph, for the rows that the model gives outputs for: the owned ones
            of a rank, all of a mini-batch. They come first among the rows held here.
        edge_index: source and destination rows of each edge, int64, (2, E).
        adjacency: the same edges in compressed rows; the kernels work on this one.
        node_ids: id of each row in the whole graph, int64, (N,): random masks are keyed by it.
        num_owned: how many rows this rank (or batch) answers for: the loss is over them.
        edge_weight: weight of each edge, in the order of `edge_index`.
        halo_ids: id of each halo node, int64; none unless ranks share the graph.
        rows_within: where rows of other ranks are computed here too: rows within 1, 2, ... hops of the owned ones. `x`
            and `node_ids` have the last of them; `y`, the masks and outputs have the owned rows alone.
    """

    x: Tensor
    y: Tensor
    edge_index: Tensor
    adjacency: Adjacency
    node_ids: Tensor
    num_owned: int
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    edge_weight: Tensor | None = None
    halo_ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    rows_within: tuple[int, ...] = ()

    @staticmethod
    def whole(graph: Graph) -> "Shard":
        """Returns the shard that holds all of `graph`."""
        return Shard(
            x=graph.x,
            y=graph.y,
            edge_index=graph.edge_index,
            adjacency=graph.adjacency,
            node_ids=graph.node_ids,
            num_owned=graph.num_nodes,
            train_mask=graph.train_mask,
            val_mask=graph.val_mask,
            test_mask=graph.test_mask,
            edge_weight=graph.edge_weight,
        )

    @property
    def num_rows(self) -> int:
        return self.x.shape[0]

    def hop_of(self, num_rows: int) -> int | None:
        """Returns how many hops of rows a tensor with so many rows has beside the owned ones; None: it has no rows."""
        if num_rows == self._num_destinations:
            return 0
        return self.rows_within.index(num_rows) + 1 if num_rows in self.rows_within else None

    @property
    def _num_destinations(self) -> int:
        return self.num_owned if self.rows_within else self.num_rows

    @property
    def num_sources(self) -> int:
        return self._num_destinations + len(self.halo_ids)

    @cached_property
    def source_ids(self) -> Tensor:
        """Ids of the rows that edges arrive at, then of the halo."""
        ids = self.node_ids[: self._num_destinations]
        return torch.cat([ids, self.halo_ids]) if len(self.halo_ids) else ids

    @cached_property
    def train_rows(self) -> Tensor:
        """Numbers of the training rows."""
        return self.train_mask.nonzero().squeeze(1)
