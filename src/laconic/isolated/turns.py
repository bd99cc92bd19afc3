"""Turns: halo rows in groups, one of which a step computes; every k-th row is of a group."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from laconic.graph.operators.linear import LinearOperator
from laconic.graph.operators.slices import columns_of

# Shapes: N owned rows, H halo rows, G halo rows of a turn


def turns_for(num_owned: int, num_halo: int) -> int:
    """Returns in how many groups a step computes no more halo rows than owned ones: it takes twice as long at most."""
    return max(1, -(-num_halo // max(num_owned, 1)))


@final
@dataclass(frozen=True)
class Turns:
    """Halo rows take turns.

    Args:
        num_owned: rows of the rank, which come first: N.
        num_turns: the number of groups.
    """

    num_owned: int
    num_turns: int

    def halo(self, rows: Tensor, turn: int) -> Tensor:
        """Returns those of the halo rows, (H, F), that are of the group `turn`; (G, F)."""
        return rows[turn :: self.num_turns]

    def rows(self, whole: Tensor, turn: int) -> Tensor:
        """Returns the owned rows and those of the group `turn`, of owned and halo rows; (N + G, F)."""
        return torch.cat([whole[: self.num_owned], self.halo(whole[self.num_owned :], turn)])


@final
@dataclass(frozen=True, eq=False)
class TurnOperator:
    """The columns of a fixed matrix on halo rows that are of one group.

    Args:
        remote: the whole matrix, (N x H).
        turn: number of the group.
        num_turns: the number of groups.
    """

    remote: LinearOperator
    turn: int
    num_turns: int

    @cached_property
    def block(self) -> LinearOperator:
        """The matrix of the group's columns, (N x G)."""
        return columns_of(self.remote, slice(self.turn, None, self.num_turns))

    def change(self, rows: Tensor, before: Tensor) -> Tensor:
        """Returns what the product gains when the group's rows are no longer those `before`, (N, F).

        The gradient of the rows counts for all groups: over all turns that is each one's own, on average.
        """
        return _change(rows, before, self.block, self.num_turns)


class _Change(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, before: Tensor, block: LinearOperator, factor: int) -> Tensor:
        ctx.block, ctx.factor = block, factor
        return block.multiply(rows - before)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return (ctx.block.transposed @ grads[0]) * ctx.factor, None, None, None


# Torch leaves `apply` untyped.
_change: Callable[..., Tensor] = _Change.apply
