"""Aggregator: what a convolution asks of the graph. Everything else in a model is plain torch on full-width rows.

A distributed strategy gives its own Aggregator, whose operators reach rows on other ranks; the convolutions in
`convolutions/` do not change.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, final

import numpy as np
from torch import Tensor

from laconic.attach.remembered import RememberedInputs
from laconic.graph import Shard
from laconic.graph.normalize import gcn_operator, mean_operator, sum_operator
from laconic.graph.operators.attention import gat_attention, gatv2_attention
from laconic.graph.operators.attention_setting import AttentionSetting
from laconic.graph.operators.dropout import drop_entries
from laconic.graph.operators.linear import FloatArray, LinearOperator
from laconic.graph.operators.maximum import maximum

Matrix = TypeVar("Matrix")
# Returns a matrix with a share of its entries dropped, by a key.
Drop = Callable[[Matrix, np.uint64], Matrix]


@final
@dataclass(frozen=True)
class Degrees:
    """How many edges arrive at each row in the whole graph, and the sum of their weights where they have some."""

    counts: FloatArray
    weights: FloatArray | None = None


@final
@dataclass(frozen=True)
class Linear:
    """A linear aggregation by name; equal ones share one operator.

    Args:
        kind: "sum", "mean" or "gcn".
        weighted: multiply each message by the graph's edge weight.
        own_weight: for "sum": times a row's own features, added (GIN's 1 + eps).
        self_loops, loop_weight: for "gcn": as in PyG's GCNConv.
    """

    kind: Literal["sum", "mean", "gcn"]
    weighted: bool = False
    own_weight: float | None = None
    self_loops: bool = True
    loop_weight: float = 1.0

    def on(
        self,
        shard: Shard,
        *,
        degrees: Degrees | None = None,
        factors: FloatArray | None = None,
    ) -> LinearOperator:
        """Returns the operator on the edges of `shard`.

        Args:
            degrees: of the rows in the whole graph, where the shard has some of their edges only.
            factors: multiply each message further, in the adjacency's order.
        """
        adjacency = shard.adjacency
        values = None
        if self.weighted:
            assert shard.edge_weight is not None
            weights = shard.edge_weight.detach().double().numpy()
            values = weights if adjacency.edge_order is None else weights[adjacency.edge_order]
        total = None if degrees is None else degrees.weights if self.weighted else degrees.counts
        if self.kind == "sum":
            operator = sum_operator(adjacency, values, own_weight=self.own_weight)
        elif self.kind == "mean":
            operator = mean_operator(adjacency, values, degrees=None if degrees is None else degrees.counts)
        else:
            operator = gcn_operator(
                adjacency,
                values,
                self_loops=self.self_loops,
                loop_weight=self.loop_weight,
                degrees=total,
            )
        if factors is None:
            return operator
        return replace(operator, values=factors if values is None else values * factors)


@final
@dataclass(frozen=True)
class Attention:
    """The fixed settings of an attention layer, and the key of its dropout in this step."""

    negative_slope: float
    self_loops: bool
    dropout: float
    key: np.uint64


class Aggregator(ABC):
    """The aggregations of one shard. Rows in, rows out, one per node that the shard owns.

    Where ranks share a graph, every method is called by all of them together, in the same order.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._last_dropped: tuple[object, Any] = (None, None)

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph (or of the batch)."""
        return self._shard.num_rows

    @property
    def is_shared(self) -> bool:
        """Whether other ranks hold a part of the rows."""
        return False

    @property
    def counts_calls(self) -> bool:
        """Whether what a layer gets depends on how many calls came before it in the pass."""
        return False

    def begin(self, *, is_training: bool) -> None:  # noqa: B027
        """Told when a forward pass of the model begins."""

    def enter_layer(self, number: int) -> None:  # noqa: B027
        """Told which convolution or norm is next, by its number in the order of the model's modules."""

    @abstractmethod
    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        """Returns the linear aggregation of rows x, (N, F)."""

    def projected(
        self, aggregation: Linear, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None
    ) -> Tensor | None:
        """Returns (linear aggregation of x) weight^T + x own^T + bias where that is better done as one; None otherwise.

        Args:
            weight, bias: of the Linear that the aggregation goes through.
            own: of the Linear that a row itself goes through.
        """
        return None

    @abstractmethod
    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        """Returns `linear` with the operator's entries dropped once per key, the rest scaled up each time (APPNP)."""

    @abstractmethod
    def is_remembered(self, x: Tensor) -> bool:
        """Whether the aggregation of x is kept from step to step, and so costs nothing."""

    def sources(self, x: Tensor) -> Tensor:
        """Returns x with a row for every source of an edge: the owned rows, then those that other ranks own."""
        return x

    def gathers_first(self, x: Tensor, width_out: int) -> bool:
        """Whether `sources` is better taken of x than of what a Linear with `width_out` outputs makes of it."""
        return True

    def aggregates_first(self, x: Tensor, width_out: int) -> bool:
        """Whether `linear` is better taken of x than of what a Linear with `width_out` outputs makes of it.

        By default where it is remembered from step to step (then neither the forward nor the backward pass has a
        product left), and otherwise on whichever side of the Linear is narrower.
        """
        return self.is_remembered(x) or x.shape[1] <= width_out

    def owned(self, x: Tensor) -> Tensor:
        """Returns the rows of x that this rank owns: statistics over nodes are sums over these."""
        return x

    def total(self, x: Tensor) -> Tensor:
        """Returns the sum of x over ranks."""
        return x

    def maximum(self, x: Tensor) -> Tensor:
        """Returns the maximum over in-neighbours, (N, F); 0 where there is none."""
        return maximum(self._shard.adjacency, self.sources(x))

    def gat(self, sources: Tensor, from_source: Tensor, from_destination: Tensor, settings: Attention) -> Tensor:
        """Returns GAT's attention-weighted sum, (N, H, C).

        Args:
            sources: projected rows of all sources, (S, H, C).
            from_source, from_destination: the logits' shares, (S, H) and (N, H).
        """
        return gat_attention(self._attention_setting(settings), sources, from_source, from_destination)

    def gatv2(self, sources: Tensor, destinations: Tensor, att: Tensor, settings: Attention) -> Tensor:
        """Returns GATv2's attention-weighted sum of `sources` (S, H, C); `destinations` is (N, H, C), `att` (H, C)."""
        return gatv2_attention(self._attention_setting(settings), sources, destinations, att)

    def _dropped(
        self, aggregation: Linear, operator: Matrix, probability: float, keys: Sequence[np.uint64], drop: Drop[Matrix]
    ) -> Matrix:
        """Returns the operator of `aggregation` with entries dropped once per key, by `drop`."""
        # Each propagation drops from what the one before has left: go on from there.
        before, left = self._last_dropped
        if before != (aggregation, probability, tuple(keys[:-1])):
            left = operator
            for key in keys[:-1]:
                left = drop(left, key)
        left = drop(left, keys[-1])
        self._last_dropped = ((aggregation, probability, tuple(keys)), left)
        return left

    def _dropped_here(
        self, aggregation: Linear, operator: LinearOperator, probability: float, keys: Sequence[np.uint64]
    ) -> LinearOperator:
        """Returns an operator on the shard's edges with entries dropped once per key."""
        ids = self._shard.source_ids
        return self._dropped(
            aggregation, operator, probability, keys, lambda left, key: drop_entries(left, probability, key, ids)
        )

    def _attention_setting(self, settings: Attention) -> AttentionSetting:
        return AttentionSetting(self._shard.adjacency, **vars(settings), node_ids=self._shard.source_ids)


class LocalAggregator(Aggregator):
    """All rows and edges are here: one machine, or one mini-batch.

    Args:
        shard: the rows and edges.
        remember_inputs: keep aggregations of the shard's own features between steps (not for a batch, used once).
        degrees: of the rows in the whole graph, to divide by where some of their edges are missing here; by default
            those of the edges that are.
        factors: multiply each message, in the adjacency's order.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        remember_inputs: bool,
        degrees: Degrees | None = None,
        factors: FloatArray | None = None,
    ) -> None:
        super().__init__(shard)
        self._degrees = degrees
        self._factors = factors
        self._operators: dict[Linear, LinearOperator] = {}
        self._remembered = RememberedInputs(shard.x if remember_inputs else None)

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        operator = self._operator(aggregation)
        return self._remembered.recall(aggregation, x, operator.multiply) if self.is_remembered(x) else operator @ x

    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        return self._dropped_here(aggregation, self._operator(aggregation), probability, keys) @ x

    def is_remembered(self, x: Tensor) -> bool:
        return self._remembered.covers(x)

    def _operator(self, aggregation: Linear) -> LinearOperator:
        if aggregation not in self._operators:
            self._operators[aggregation] = aggregation.on(self._shard, degrees=self._degrees, factors=self._factors)
        return self._operators[aggregation]
