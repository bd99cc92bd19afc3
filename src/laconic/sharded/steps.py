"""The steps of a product as differentiable functions, each with its adjoint.

    expand    (N, ...) -> (N + M, ...)      rows of other ranks along an axis are appended
    fold      (N + M, ...) -> (N, ...)      sums for their rows go to their owners: adjoint of expand
    split     (own rows, F) -> (rows of the line's block, F / pj)
    join      the way back: adjoint of split

Backward of a step is its adjoint, so that gradients of gradients exist too.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laconic.comm.ledger import Ledger
from laconic.sharded.axis import Axis
from laconic.sharded.position import Position
from laconic.sharded.swap import Swap

# Shapes: N rows of the own block, M rows of the others


def expand(axis: Axis, x: Tensor, ledger: Ledger, position: Position) -> Tensor:
    """Returns the rows x of the own block, (N, ...), followed by those of the others along `axis`, (N + M, ...)."""
    return _expand(x, axis, ledger, position)


def fold(axis: Axis, partial: Tensor, ledger: Ledger, position: Position) -> Tensor:
    """Returns the sum over the ranks along `axis` of their rows for the own block, (N, ...), of (N + M, ...)."""
    return _fold(partial, axis, ledger, position)


def split(swap: Swap, x: Tensor, ledger: Ledger, position: Position) -> Tensor:
    """Returns a slice of the features for all rows of the line."""
    return _split(x, swap, ledger, position)


def join(swap: Swap, rows: Tensor, width: int, ledger: Ledger, position: Position) -> Tensor:
    """Returns the own rows in full width."""
    return _join(rows, swap, width, ledger, position)


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, ledger: Ledger, position: Position) -> Tensor:
        ctx.step = (axis, ledger, position)
        rows = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
        with position.booked(ledger):
            others = axis.start_expand(rows, rows.shape[1]).wait()
        return torch.cat([x, others.view(-1, *x.shape[1:])])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        axis, ledger, position = ctx.step
        return _fold(grads[0], axis, ledger, position.backward), None, None, None


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, axis: Axis, ledger: Ledger, position: Position) -> Tensor:
        ctx.step = (axis, ledger, position)
        rows = partial.flatten(1) if partial.dim() > 1 else partial.unsqueeze(1)
        num_own = len(rows) - axis.num_others
        with position.booked(ledger):
            arriving = axis.start_fold(rows[num_own:], rows.shape[1])
            own = rows[:num_own].clone(memory_format=torch.contiguous_format)
            axis.add_folded(arriving.wait(), own)
        return own.view(-1, *partial.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        axis, ledger, position = ctx.step
        return _expand(grads[0], axis, ledger, position.backward), None, None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, swap: Swap, ledger: Ledger, position: Position) -> Tensor:
        ctx.step = (swap, x.shape[1], ledger, position)
        with position.booked(ledger):
            return swap.split(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        swap, width, ledger, position = ctx.step
        return _join(grads[0], swap, width, ledger, position.backward), None, None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, swap: Swap, width: int, ledger: Ledger, position: Position) -> Tensor:
        ctx.step = (swap, ledger, position)
        with position.booked(ledger):
            return swap.join(rows, width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        swap, ledger, position = ctx.step
        return _split(grads[0], swap, ledger, position.backward), None, None, None, None


# Torch leaves `apply` untyped.
_expand: Callable[..., Tensor] = _Expand.apply
_fold: Callable[..., Tensor] = _Fold.apply
_split: Callable[..., Tensor] = _Split.apply
_join: Callable[..., Tensor] = _Join.apply
