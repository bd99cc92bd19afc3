"""Turns: halo rows that training rows see, in groups; in a step gradients flow through one of them, every k-th row.

With A_g the columns of the group g = epoch mod k of the remote matrix A = sum of A_j, (N x H), and h the halo's rows:

    forward     A h = A_g h_g + sum over j != g of A_j h_j        the sum was computed ahead, without gradients
    backward    dL/dh_g = k A_g^T dL/d(A h)                       the mean over all k turns is A^T dL/d(A h)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.operators.linear import LinearOperator

# Shapes: N owned rows, H halo rows, G halo rows of a turn


# Halo rows through which gradients flow in a step, at most, over owned rows. More groups save little time, as the rows
# of all of them are computed anyway, and make gradients noisier; METIS parts of most graphs need one group.
MOST_OVER_OWNED = 2
# What a step holds of a row for its backward pass, over the widths of what its layers read.
_HELD_OVER_READ = 4
# Groups save time too, about a fifth of a step, so that copies may be larger than what they spare, up to a point.
_MOST_COPIED_OVER_SPARED = 8
# Above this share, leaving out what nobody sees saves less than the copies of the rest cost.
_WORTH_CHOOSING = 0.9


def turns_for(num_owned: int, num_halo: int) -> int:
    """Returns in how many groups gradients flow through at most twice as many halo rows as there are owned ones."""
    return max(1, -(-num_halo // max(MOST_OVER_OWNED * num_owned, 1)))


def copies_outweigh(num_owned: int, num_halo: int, num_turns: int, width_constant: int, width_changing: int) -> bool:
    """Whether groups of nearly all halo rows cost far more memory than they spare.

    Each row that a step leaves out spares what it would hold of it, but the constants of all others have to be copied:
    features that are much wider than the layers are better read where they are.

    Args:
        width_constant: columns of what never changes, (N + H) rows.
        width_changing: columns of what layers read that changes.
    """
    num_in_group = -(-num_halo // num_turns)
    num_copied = (num_owned + num_in_group) * width_constant
    num_spared = (num_halo - num_in_group) * width_changing * _HELD_OVER_READ
    return num_turns > 1 and num_copied > _MOST_COPIED_OVER_SPARED * num_spared


def halo_seen(adjacency: Adjacency, seeing: NDArray[np.bool_], num_hops: int) -> NDArray[np.int64] | None:
    """Returns which halo rows are seen within `num_hops` hops, the last of which leads to them; None if most are.

    What a halo row is computed from is kept: nobody sees further by way of it.

    Args:
        adjacency: edges that arrive at owned rows, from owned and, behind them, halo rows, (N x (N + H)).
        seeing: from where: a mask over the first rows.
    """
    num_owned = adjacency.num_rows
    targets, sources = adjacency.row_of_edge, adjacency.indices
    seen = np.zeros(adjacency.num_columns, bool)
    seen[: len(seeing)] = seeing
    mark_seen(seen, sources, targets, num_hops)
    halo = seen[num_owned:]
    return np.flatnonzero(halo) if halo.sum() <= _WORTH_CHOOSING * len(halo) and len(halo) else None


def mark_seen(
    seen: NDArray[np.bool_], sources: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]], num_hops: int
) -> None:
    """Marks what the rows that are marked see within `num_hops` hops, against the direction of edges."""
    num_seen = -1
    for _ in range(num_hops):
        if num_seen == (num_seen := int(seen.sum())):
            break
        seen[sources[seen[targets]]] = True


@final
@dataclass(frozen=True, eq=False)
class Turns:
    """Halo rows take turns.

    Args:
        num_owned: rows of the rank, which come first: N.
        num_turns: the number of groups.
        taking_part: numbers of the halo rows that are of a group; None: all are.
    """

    num_owned: int
    num_turns: int
    taking_part: NDArray[np.int64] | None = None

    @property
    def has_all_in_one(self) -> bool:
        """Whether a turn is all there is."""
        return self.num_turns == 1 and self.taking_part is None

    def among(self, halo: Tensor) -> Tensor:
        """Returns those of all halo rows that take part."""
        return halo if self.taking_part is None else halo[self.taking_part]

    def of_turn(self, rows: Tensor, turn: int) -> Tensor:
        """Returns those of the rows that take part that are of the group `turn`, (G, F)."""
        return rows[turn :: self.num_turns]

    def halo(self, whole: Tensor, turn: int) -> Tensor:
        """Returns the group `turn`, of owned and all halo rows; (G, F)."""
        return whole[self.num_owned :][self.columns(turn)]

    def rows(self, whole: Tensor, turn: int, room: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the owned rows and the group `turn`, of owned and all halo rows; (N + G, F); and their room.

        Args:
            room: that of another turn, to be written over: its owned rows are those of `whole`.
        """
        halo = self.halo(whole, turn)
        if room is None:
            num_halo = len(whole) - self.num_owned if self.taking_part is None else len(self.taking_part)
            room = whole.new_empty(self.num_owned + -(-num_halo // self.num_turns), *whole.shape[1:])
            room[: self.num_owned] = whole[: self.num_owned]
        rows = room[: self.num_owned + len(halo)]
        rows[self.num_owned :] = halo
        return rows, room

    def columns(self, turn: int) -> slice | NDArray[np.int64]:
        """Returns which halo rows are of the group `turn`."""
        every = slice(turn, None, self.num_turns)
        return every if self.taking_part is None else self.taking_part[every]


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, block: LinearOperator, factor: int) -> Tensor:
        ctx.block, ctx.factor = block, factor
        return block.multiply(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return (ctx.block.transposed @ grads[0]).mul_(ctx.factor), None, None


def multiply_in_turn(columns: LinearOperator, rows: Tensor, num_turns: int) -> Tensor:
    """Returns the product of a matrix's columns of a group, (N x G), with the group's rows, (G, F).

    The gradient of these rows counts for all groups: over all turns that is each one's own, on average.
    """
    if num_turns == 1:
        return columns @ rows
    product: Tensor = _Multiply.apply(rows, columns, num_turns)  # type: ignore[no-untyped-call]
    return product


@final
@dataclass(frozen=True, eq=False)
class _Part:
    """Some rows of a constant, the room that they stand in, and how often all had been changed in place by then."""

    rows: Tensor
    room: Tensor
    whole: Tensor
    versions: tuple[int, int]

    @staticmethod
    def of(rows: Tensor, room: Tensor, whole: Tensor) -> "_Part":
        # Rows and the room that they are a view of count together.
        return _Part(rows, room, whole, (rows._version, whole._version))

    @property
    def is_intact(self) -> bool:
        return (self.rows._version, self.whole._version) == self.versions


@final
class TurnCopies:
    """Parts of a turn. When it is over, those of the next are written over them: wide features are copied once."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._spent: list[_Part] = []

    def end_turn(self) -> None:
        self._parts, self._spent = [], self._parts

    def whole_of(self, x: Tensor) -> Tensor:
        """Returns the constant that x is a part of; x itself if it is of none."""
        return next((part.whole for part in self._parts if part.rows is x and part.is_intact), x)

    def of(self, whole: Tensor, make: Callable[[Tensor | None], tuple[Tensor, Tensor]]) -> Tensor:
        """Returns the part of `whole`, made now or earlier in this turn.

        Args:
            make: returns the rows and the room that they stand in; gets the room of the turn before, if there is one.
        """
        for part in self._parts:
            if part.whole is whole and part.is_intact:
                return part.rows
        spent = next((part.room for part in self._spent if part.whole is whole and part.is_intact), None)
        part = _Part.of(*make(spent), whole)
        self._parts.append(part)
        return part.rows
