"""Sweeper: brings the chunks of each super-epoch to this rank, ahead of time, and makes a view of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.comm.pending import Pending
from laconic.graph import Shard
from laconic.papers.grappa.held import HeldChunk
from laconic.papers.grappa.supply import Supply
from laconic.papers.grappa.sweep import Sweep
from laconic.papers.grappa.view import View, build_view


@final
@dataclass(eq=False)
class Sweeper:
    """What one rank holds, super-epoch by super-epoch (the first is 0).

    Args:
        rank: whose.
        base: its own rows.
        owned: its own chunks.
        chunk_starts: where each chunk's rows begin among the places.
        supply: where variable chunks come from.
        sweep_of: the sweep that a super-epoch belongs to, and its number within it; the same on all ranks.
    """

    rank: int
    base: Shard
    owned: Mapping[int, HeldChunk]
    chunk_starts: NDArray[np.int64]
    supply: Supply
    sweep_of: Callable[[int], tuple[Sweep, int]]
    _held: dict[int, HeldChunk] = field(default_factory=dict, init=False)
    _current: int | None = field(default=None, init=False)
    _coming: tuple[int, Pending[list[HeldChunk]]] | None = field(default=None, init=False)

    def view(self, super_epoch: int) -> View:
        """Returns the view of `super_epoch`, waiting for its chunks if need be; all ranks call it together."""
        if self._coming is None or self._coming[0] != super_epoch:
            self.start(super_epoch)
        assert self._coming is not None
        come = {chunk.number: chunk for chunk in self._coming[1].wait()}
        numbers = self._chunks(super_epoch, self.rank)
        # What is held no longer is let go.
        self._held = {number: (come | self._held | dict(self.owned))[number] for number in numbers}
        self._current, self._coming = super_epoch, None
        return build_view([self._held[number] for number in numbers], self.base, self.chunk_starts)

    def start(self, super_epoch: int) -> None:
        """Begins to bring the chunks of `super_epoch` here; all ranks call it together."""
        if self._coming is not None:
            # Others are on their way, as after a jump back: let them come first, in the same order on all ranks.
            self._coming[1].wait()
        self._coming = (super_epoch, self.supply.start(self.wanted(super_epoch, after=self._current)))

    def wanted(self, super_epoch: int, *, after: int | None) -> list[list[int]]:
        """Returns, by rank, the chunks that it has to get for `super_epoch`.

        Args:
            after: the super-epoch that is held before; None for nothing but the ranks' own.
        """
        sweep, _ = self.sweep_of(super_epoch)
        wanted = []
        for rank in range(sweep.num_ranks):
            before = set(sweep.base[rank] if after is None else self._chunks(after, rank))
            wanted.append([number for number in self._chunks(super_epoch, rank) if number not in before])
        return wanted

    def _chunks(self, super_epoch: int, rank: int) -> tuple[int, ...]:
        sweep, number = self.sweep_of(super_epoch)
        return sweep.held(number, rank)
