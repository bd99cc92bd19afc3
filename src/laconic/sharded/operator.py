"""SplitOperator: a fixed sparse matrix whose columns lie on several ranks; the local product runs while rows travel."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.exchange import Arriving, Route
from laconic.graph import Adjacency
from laconic.graph.operators.linear import LinearOperator
from laconic.kernels.compress import compress_edges
from laconic.sharded.position import Position

# Shapes: N owned rows, H halo rows, F features


@final
@dataclass(frozen=True)
class SplitAdjacency:
    """The edges of a shard in two: from owned rows, and from halo rows.

    Args:
        local: (N x N).
        remote: (N x H).
        is_local: for each edge of the shard's adjacency, whether it is in `local`.
    """

    local: Adjacency
    remote: Adjacency
    is_local: np.ndarray

    @staticmethod
    def of(adjacency: Adjacency) -> "SplitAdjacency":
        num_owned = adjacency.num_rows
        is_local = adjacency.indices < num_owned
        rows, columns = adjacency.row_of_edge, adjacency.indices

        def compress(chosen: np.ndarray, first: int, num_columns: int) -> Adjacency:
            # Sorted already: compressing keeps the order, so values per edge can be split by the same mask.
            indptr, indices, _ = compress_edges(columns[chosen] - first, rows[chosen], num_owned, num_columns)
            return Adjacency(indptr, indices, num_columns)

        num_halo = adjacency.num_columns - num_owned
        return SplitAdjacency(compress(is_local, 0, num_owned), compress(~is_local, num_owned, num_halo), is_local)


@final
@dataclass(frozen=True, eq=False)
class SplitOperator:
    """The matrix M = [local | remote] on owned and halo rows, and the exchange that brings the halo rows here.

    Where messages are coded, the exchange is the route of one product and of the gradients that belong to it.
    """

    local: LinearOperator
    remote: LinearOperator
    exchange: Route

    @staticmethod
    def of(whole: LinearOperator, split: SplitAdjacency, exchange: Route) -> "SplitOperator":
        """Splits an operator on (N x N + H) by columns."""
        num_owned = split.local.num_rows

        def part(adjacency: Adjacency, edges: np.ndarray, columns: slice) -> LinearOperator:
            return replace(
                whole,
                adjacency=adjacency,
                values=None if whole.values is None else whole.values[edges],
                column_scale=None if whole.column_scale is None else whole.column_scale[columns],
            )

        local = part(split.local, split.is_local, slice(0, num_owned))
        remote = part(split.remote, ~split.is_local, slice(num_owned, None))
        # A row's own features, and loops, are local.
        return SplitOperator(local, replace(remote, diagonal=None, skip_loops=False), exchange)

    def multiply(self, x: Tensor, halo: Tensor | None = None) -> Tensor:
        """Returns M x for owned rows x, (N, F), without recording it for autograd; all ranks call it together.

        Args:
            halo: the halo rows of x, (H, F), where they are here already, on all ranks.
        """
        arriving = self.exchange.start(x) if halo is None else None
        out = self.local.multiply(x)
        halo = arriving.wait() if arriving is not None else halo
        assert halo is not None
        return self.remote.multiply(halo, add_to=out)

    def multiply_transposed(self, grad: Tensor) -> Tensor:
        """Returns the owned rows of M^T grad, summed over all ranks; all ranks call it together."""
        return self.finish_transposed(grad, self.start_transposed(grad))

    def start_transposed(self, grad: Tensor) -> Arriving:
        """Sends the halo rows of M^T grad to their owners."""
        return self.exchange.start_back(self.remote.transposed.multiply(grad))

    def finish_transposed(self, grad: Tensor, back: Arriving) -> Tensor:
        """Returns the owned rows of M^T grad, when what others have for them has come."""
        out = self.local.transposed.multiply(grad)
        self.exchange.add_back(back.wait(), out)
        return out


def split_product(operator: SplitOperator, x: Tensor, position: Position, *, is_transposed: bool = False) -> Tensor:
    """Returns M x or M^T x, differentiable in x; booked at `position`."""
    return _product(x, operator, position, is_transposed)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: SplitOperator, position: Position, is_transposed: bool) -> Tensor:
        ctx.operator, ctx.position, ctx.is_transposed = operator, position, is_transposed
        with position.booked(operator.exchange.communicator.ledger):
            return operator.multiply_transposed(x) if is_transposed else operator.multiply(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        # Linear, so its gradient is a product again, and differentiable too.
        grad = _product(grads[0], ctx.operator, ctx.position.backward, not ctx.is_transposed)
        return grad, None, None, None


# Torch leaves `apply` untyped.
_product: Callable[..., Tensor] = _Product.apply
