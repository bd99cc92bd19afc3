"""The steps of a product as differentiable functions, each with its adjoint.

    expand    (N, ...) -> (N + M, ...)      rows of other ranks along an axis are appended
    fold      (N + M, ...) -> (N, ...)      sums for their rows go to their owners: adjoint of expand
    split     (own rows, F) -> (rows of the line's block, F / pj)
    join      the way back: adjoint of split

Backward of a step is its adjoint (linear_map.py).
"""

from functools import partial

import torch
from torch import Tensor

from laconic.comm.ledger import Ledger
from laconic.sharded.axis import Axis
from laconic.sharded.linear_map import apply_linear
from laconic.sharded.position import Position
from laconic.sharded.swap import Swap

# Shapes: N rows of the own block, M rows of the others


def expand(axis: Axis, x: Tensor, ledger: Ledger, position: Position) -> Tensor:
    """Returns the rows x of the own block, (N, ...), followed by those of the others along `axis`, (N + M, ...)."""
    return apply_linear(partial(_expand, axis), partial(_fold, axis), x, ledger, position)


def fold(axis: Axis, sums: Tensor, ledger: Ledger, position: Position) -> Tensor:
    """Returns the sum over the ranks along `axis` of their rows for the own block, (N, ...), of (N + M, ...)."""
    return apply_linear(partial(_fold, axis), partial(_expand, axis), sums, ledger, position)


def split(swap: Swap, x: Tensor, ledger: Ledger, position: Position) -> Tensor:
    """Returns a slice of the features for all rows of the line."""
    return apply_linear(swap.split, partial(swap.join, width=x.shape[1]), x, ledger, position)


def join(swap: Swap, rows: Tensor, width: int, ledger: Ledger, position: Position) -> Tensor:
    """Returns the own rows in full width."""
    return apply_linear(partial(swap.join, width=width), swap.split, rows, ledger, position)


def _expand(axis: Axis, x: Tensor) -> Tensor:
    rows = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    others = axis.start_expand(rows, rows.shape[1]).wait()
    return torch.cat([x, others.view(-1, *x.shape[1:])])


def _fold(axis: Axis, sums: Tensor) -> Tensor:
    rows = sums.flatten(1) if sums.dim() > 1 else sums.unsqueeze(1)
    num_own = len(rows) - axis.num_others
    arriving = axis.start_fold(rows[num_own:], rows.shape[1])
    own = rows[:num_own].clone(memory_format=torch.contiguous_format)
    axis.add_folded(arriving.wait(), own)
    return own.view(-1, *sums.shape[1:])
