"""A matrix on ranks: products forward and backward, and the factory of matrices.

Members: operator.py, and papers/cagnet/summa.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.attach.aggregator import Linear
from laconic.comm.ledger import Ledger
from laconic.graph import Adjacency
from laconic.graph.operators.linear import FloatArray
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
    return _product(x, matrix, widest, ledger, position)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: ShardedMatrix, widest: int, ledger: Ledger, position: Position) -> Tensor:
        ctx.step = (matrix, widest, ledger, position)
        with position.booked(ledger):
            return matrix.multiply(x, widest)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        matrix, widest, ledger, position = ctx.step
        # Linear, so its gradient is a product again, and differentiable too.
        grad = _product(grads[0], matrix.transposed, widest, ledger, position.backward)
        return grad, None, None, None, None


# Torch leaves `apply` untyped.
_product: Callable[..., Tensor] = _Product.apply
