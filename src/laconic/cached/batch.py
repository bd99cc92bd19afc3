"""Mini-batches with historical neighbours: drawn from the rank's own rows and its halo, whose rows are not computed.

A halo row has no edges of its own here, so nothing is drawn beyond it. Where a layer reads a halo row, it gets the
historical one: x'(i) = A_batch [x(i), halo(t)], (R x R) times (R, F).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from laconic.attach.aggregator import Aggregator, Linear
from laconic.graph import Shard
from laconic.graph.operators.linear import FloatArray, LinearOperator

# Shapes: N owned rows, H halo rows, R rows of a batch


@final
class HistoricalBatchAggregator(Aggregator):
    """Rows of a batch in, rows of a batch out; what a layer reads of halo rows is what was kept of them.

    Args:
        batch: drawn from `with_halo_rows`.
        halo_ids: ids of the halo rows, in the order in which they are kept.
        kept: gives what was kept for a call by its number in the pass, (H, F).
        halo_scale: gives the column scales of the halo rows in an aggregation over the whole graph, (H,), or None.
    """

    def __init__(
        self,
        batch: Shard,
        halo_ids: Tensor,
        kept: Callable[[int], Tensor],
        halo_scale: Callable[[Linear], FloatArray | None],
    ) -> None:
        super().__init__(batch)
        self._halo_scale = halo_scale
        order = torch.argsort(halo_ids)
        position = torch.searchsorted(halo_ids[order], batch.node_ids)
        position = position.clamp(max=max(len(halo_ids) - 1, 0))
        is_halo = halo_ids[order][position] == batch.node_ids if len(halo_ids) else torch.zeros_like(position).bool()
        self._rows = is_halo.nonzero().squeeze(1)
        self._halo = order[position[self._rows]] if len(halo_ids) else self._rows
        self._kept = kept
        self._operators: dict[Linear, LinearOperator] = {}
        self._next = 0

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def counts_calls(self) -> bool:
        return True

    def begin(self, *, is_training: bool) -> None:
        self._next = 0

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        return self._operator(aggregation) @ self.sources(x)

    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        return self._dropped_here(aggregation, self._operator(aggregation), probability, keys) @ self.sources(x)

    def is_remembered(self, x: Tensor) -> bool:
        return False

    def sources(self, x: Tensor) -> Tensor:
        kept = self._kept(self._next)
        self._next += 1
        return x if not len(self._rows) else x.index_copy(0, self._rows, kept[self._halo].to(x.dtype))

    def aggregates_first(self, x: Tensor, width_out: int) -> bool:
        return True

    def _operator(self, aggregation: Linear) -> LinearOperator:
        if aggregation not in self._operators:
            operator = aggregation.on(self._shard)
            scale = self._halo_scale(aggregation)
            if scale is not None and operator.column_scale is not None:
                # No edge arrives at a halo row here: its degree is known from the whole graph only.
                columns = operator.column_scale.copy()
                columns[self._rows.numpy()] = scale[self._halo.numpy()]
                operator = replace(operator, column_scale=columns)
            self._operators[aggregation] = operator
        return self._operators[aggregation]
