"""A matrix on ranks: products forward and backward, and the factory of matrices.

Members: operator.py, and papers/cagnet/summa.py.
"""

from abc import ABC, abstractmethod

import numpy as np
from torch import Tensor

from laconic.attach.aggregator import Linear
from laconic.comm.ledger import Ledger
from laconic.graph import Adjacency
from laconic.graph.operators.linear import FloatArray
from laconic.sharded.linear_map import apply_linear
from laconic.sharded.position import Position

# Shapes: N rows of the own block, F features


class ShardedMatrix(ABC):
    """A fixed sparse matrix, cut over ranks, as one of them sees it."""

    @property
    @abstractmethod
    def transposed(self) -> "ShardedMatrix":
        """The transposed matrix: what were rows are columns."""

    @abstractmethod
    def multiply(self, x: Tensor, widest: int) -> Tensor:
        """Returns the own block's rows of M x, (N, F), without recording it for autograd; all ranks call it together.

        Args:
            widest: the largest F of any rank.
        """

    @abstractmethod
    def dropped(self, probability: float, key: np.uint64, row_ids: Tensor, column_ids: Tensor) -> "ShardedMatrix":
        """Returns the matrix with a share of its entries zeroed and the rest scaled up; keyed as edges.

        Args:
            row_ids, column_ids: number of each row and column of the block in the whole graph, the own ones first.
        """


class ShardedOperators(ABC):
    """Makes matrices of the edges of a rank; every method is called by all ranks together."""

    adjacency: Adjacency

    @abstractmethod
    def of(self, aggregation: Linear) -> ShardedMatrix:
        """Returns the matrix of an aggregation, normalised by the degrees of the whole graph."""

    @abstractmethod
    def booked(self, adjacency: Adjacency, weights: FloatArray | None, ledger: Ledger) -> "ShardedOperators":
        """Returns the same for a block of own rows and columns alone, which books what this one would move."""


def sharded_product(matrix: ShardedMatrix, x: Tensor, widest: int, ledger: Ledger, position: Position) -> Tensor:
    """Returns M x, differentiable in x; booked at `position`."""

    def multiply_back(grad: Tensor) -> Tensor:
        return matrix.transposed.multiply(grad, widest)

    return apply_linear(lambda rows: matrix.multiply(rows, widest), multiply_back, x, ledger, position)
