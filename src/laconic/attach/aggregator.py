"""Aggregator: what a convolution asks of the graph. Everything else in a model is plain torch on full-width rows.

A distributed strategy gives its own Aggregator, whose operators reach rows on other ranks; the convolutions in
`convolutions/` do not change.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from laconic.graph import Shard
from laconic.graph.normalize import gcn_operator, mean_operator, sum_operator
from laconic.graph.operators.attention import gat_attention, gatv2_attention
from laconic.graph.operators.attention_setting import AttentionSetting
from laconic.graph.operators.dropout import drop_entries
from laconic.graph.operators.linear import LinearOperator
from laconic.graph.operators.maximum import maximum

# Aggregated input features are kept up to this size: they cost memory once and save a product in every epoch. Their
# powers (SGConv) are kept as long as all of them together are not larger.
REMEMBERED_BYTES_LIMIT = 1 << 30


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


@final
@dataclass(frozen=True)
class Attention:
    """The fixed settings of an attention layer, and the key of its dropout in this step."""

    negative_slope: float
    self_loops: bool
    dropout: float
    key: np.uint64


class Aggregator(ABC):
    """The aggregations of one shard. Rows in, rows out, one per node of the shard."""

    @abstractmethod
    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        """Returns the linear aggregation of rows x, (N, F)."""

    @abstractmethod
    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        """Returns `linear` with the operator's entries dropped once per key, the rest scaled up each time (APPNP)."""

    @abstractmethod
    def is_remembered(self, x: Tensor) -> bool:
        """Whether the aggregation of x is kept from step to step, and so costs nothing."""

    @abstractmethod
    def maximum(self, x: Tensor) -> Tensor:
        """Returns the maximum over in-neighbours, (N, F); 0 where there is none."""

    @abstractmethod
    def gat(self, x: Tensor, from_source: Tensor, from_destination: Tensor, settings: Attention) -> Tensor:
        """Returns GAT's attention-weighted sum of x (N, H, C) with logits per source and destination (N, H)."""

    @abstractmethod
    def gatv2(self, source: Tensor, destination: Tensor, att: Tensor, settings: Attention) -> Tensor:
        """Returns GATv2's attention-weighted sum of `source` (N, H, C); `att` is (H, C)."""


@final
@dataclass(frozen=True, eq=False)
class _Kept:
    """An aggregation that is kept, and how often both tensors had been changed in place by then."""

    x: Tensor
    out: Tensor
    x_version: int
    out_version: int

    @staticmethod
    def of(x: Tensor, out: Tensor) -> "_Kept":
        return _Kept(x, out, x._version, out._version)

    @property
    def is_valid(self) -> bool:
        return self.x._version == self.x_version and self.out._version == self.out_version


@final
class LocalAggregator(Aggregator):
    """All rows and edges are here: one machine, or one mini-batch.

    Args:
        shard: the rows and edges.
        remember_inputs: keep aggregations of the shard's own features between steps (not for a batch, used once).
    """

    def __init__(self, shard: Shard, *, remember_inputs: bool) -> None:
        self._shard = shard
        self._dropped: tuple[object, LinearOperator] = (None, LinearOperator(shard.adjacency))
        self._operators: dict[Linear, LinearOperator] = {}
        self._remembered: dict[tuple[Linear, int], _Kept] = {}
        self._constants: dict[int, Tensor] = {id(shard.x): shard.x} if remember_inputs else {}

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        if not self.is_remembered(x):
            return self._operator(aggregation) @ x
        kept = self._remembered.get((aggregation, id(x)))
        if kept is None or not kept.is_valid:
            if kept is not None:
                self._forget(kept.out)
            # Out of inference mode: a tensor made in it could not be trained on later.
            with torch.inference_mode(False):
                kept = _Kept.of(x, self._operator(aggregation).multiply(x))
            self._remembered[aggregation, id(x)] = kept
            if sum(constant.nbytes for constant in self._constants.values()) <= REMEMBERED_BYTES_LIMIT:
                # What was made of a constant is one too, so that powers (SGConv) are kept as well.
                self._constants[id(kept.out)] = kept.out
        return kept.out

    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        # Each propagation drops from what the one before has left: go on from there.
        before, operator = self._dropped
        if before != (aggregation, probability, tuple(keys[:-1])):
            operator = self._operator(aggregation)
            for key in keys[:-1]:
                operator = drop_entries(operator, probability, key, self._shard.node_ids)
        operator = drop_entries(operator, probability, keys[-1], self._shard.node_ids)
        self._dropped = ((aggregation, probability, tuple(keys)), operator)
        return operator @ x

    def is_remembered(self, x: Tensor) -> bool:
        return (
            self._constants.get(id(x)) is x
            and not x.requires_grad
            and not x.is_inference()
            and x.nbytes <= REMEMBERED_BYTES_LIMIT
            and x.is_floating_point()
        )

    def maximum(self, x: Tensor) -> Tensor:
        return maximum(self._shard.adjacency, x)

    def gat(self, x: Tensor, from_source: Tensor, from_destination: Tensor, settings: Attention) -> Tensor:
        return gat_attention(self._attention_setting(settings), x, from_source, from_destination)

    def gatv2(self, source: Tensor, destination: Tensor, att: Tensor, settings: Attention) -> Tensor:
        return gatv2_attention(self._attention_setting(settings), source, destination, att)

    def _attention_setting(self, settings: Attention) -> AttentionSetting:
        return AttentionSetting(self._shard.adjacency, **vars(settings), node_ids=self._shard.node_ids)

    def _forget(self, out: Tensor) -> None:
        """Drops what was kept of `out`, an aggregation that holds no longer."""
        self._constants.pop(id(out), None)
        for place, kept in list(self._remembered.items()):
            if kept.x is out:
                del self._remembered[place]
                self._forget(kept.out)

    def _operator(self, aggregation: Linear) -> LinearOperator:
        if aggregation not in self._operators:
            self._operators[aggregation] = _build(self._shard, aggregation)
        return self._operators[aggregation]


def _build(shard: Shard, aggregation: Linear) -> LinearOperator:
    adjacency = shard.adjacency
    values = None
    if aggregation.weighted:
        assert shard.edge_weight is not None
        weights = shard.edge_weight.detach().double().numpy()
        values = weights if adjacency.edge_order is None else weights[adjacency.edge_order]
    if aggregation.kind == "sum":
        return sum_operator(adjacency, values, own_weight=aggregation.own_weight)
    if aggregation.kind == "mean":
        return mean_operator(adjacency, values)
    return gcn_operator(adjacency, values, self_loops=aggregation.self_loops, loop_weight=aggregation.loop_weight)
