"""ViewAggregator: aggregations over a view, normalised by the degrees of the whole graph.

What is missing is missing: a mean is the sum over the neighbours that are here, over the number of all. Factors per
edge make up for it over a sweep (`Sweep.edge_weight_of_held_row`).
"""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from laconic.attach.aggregator import Aggregator, Linear
from laconic.attach.remembered import RememberedInputs
from laconic.graph.operators.linear import LinearOperator
from laconic.isolated.view import View


@final
class ViewAggregator(Aggregator):
    """Rows of a view in, rows of a view out.

    Args:
        view: the rows and edges.
        factors: multiply each message, in the adjacency's order; None for 1.
    """

    def __init__(self, view: View, factors: NDArray[np.float64] | None = None) -> None:
        super().__init__(view.shard)
        self._degrees = view.degrees
        self._factors = factors
        self._operators: dict[Linear, LinearOperator] = {}
        self._remembered = RememberedInputs(view.shard.x)

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        operator = self._operator(aggregation)
        return self._remembered.recall(aggregation, x, operator.multiply) if self.is_remembered(x) else operator @ x

    def linear_with_edge_dropout(
        self, aggregation: Linear, x: Tensor, probability: float, keys: Sequence[np.uint64]
    ) -> Tensor:
        return self._dropped(aggregation, self._operator(aggregation), probability, keys) @ x

    def is_remembered(self, x: Tensor) -> bool:
        return self._remembered.covers(x)

    def _operator(self, aggregation: Linear) -> LinearOperator:
        if aggregation not in self._operators:
            self._operators[aggregation] = aggregation.on(self._shard, degrees=self._degrees, factors=self._factors)
        return self._operators[aggregation]
