"""Sweep: which chunks each rank holds in each super-epoch.

Rank k holds its base chunks B_k always, and beside them m variable chunks of other ranks, V_k(s), in super-epoch s. One
sweep, S super-epochs, is over when every rank has held every chunk. An edge from chunk j into chunk i counts

    w_ij = |{s: k holds i}| / |{s: k holds i and j}|        for i in B_k: S over the super-epochs that hold j

with correction=sweep, so that the mean over a sweep of the sums over neighbours held is the sum over all neighbours.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from laconic.errors import ConfigError
from laconic.kernels.keyed import fold_key
from laconic.specs import unknown_name

# Shapes: C chunks

Chunks = tuple[int, ...]
# What a key is for, so that equal numbers elsewhere draw something else.
_SWEEP = 0x5357


@final
@dataclass(frozen=True)
class Sweep:
    """The chunks that ranks hold over one sweep; after its last super-epoch it begins again.

    Args:
        base: the chunks that each rank owns, by rank.
        variable: [super_epoch][rank] -> the chunks that it holds beside them, none of its base.
    """

    base: tuple[Chunks, ...]
    variable: tuple[tuple[Chunks, ...], ...]

    @property
    def num_super_epochs(self) -> int:
        return len(self.variable)

    @property
    def num_ranks(self) -> int:
        return len(self.base)

    @property
    def num_chunks(self) -> int:
        return sum(len(chunks) for chunks in self.base)

    def held(self, super_epoch: int, rank: int) -> Chunks:
        """Returns the chunks of `rank`, its base first; super-epochs count from 0 and go round."""
        return self.base[rank] + self.variable[super_epoch % self.num_super_epochs][rank]

    def times_held(self, rank: int) -> NDArray[np.int64]:
        """Returns in how many super-epochs of a sweep `rank` holds both chunk i and chunk j, (C, C)."""
        is_held = np.zeros((self.num_super_epochs, self.num_chunks), np.int64)
        for super_epoch in range(self.num_super_epochs):
            is_held[super_epoch, list(self.held(super_epoch, rank))] = 1
        times: NDArray[np.int64] = is_held.T @ is_held
        return times

    def edge_weight_of_held_row(self, rank: int) -> NDArray[np.float64]:
        """Returns the weight of an edge from chunk j into chunk i that makes a sweep exact, (C, C); 0 where never held.

        Super-epochs that hold chunk i over those that also hold chunk j. Into base chunks, which are always held, that
        is super-epochs over those in which the edge is held: its weights over one sweep average to 1. A row of a
        variable chunk is reached over an edge that was already given the weight for this row's absences: giving it to
        the next edge too would count them twice. Along two edges the product is the weight of the whole path.
        """
        times = self.times_held(rank)
        return _share(np.broadcast_to(np.diag(times)[:, None], times.shape), times)

    def unseen_pairs(self, num_super_epochs: int) -> list[tuple[int, int]]:
        """Returns which (destination chunk, source chunk) the destination's owner never holds together by then."""
        unseen = []
        for rank, base in enumerate(self.base):
            # From the second sweep on nothing new is met.
            seen = {chunk for s in range(min(num_super_epochs, self.num_super_epochs)) for chunk in self.held(s, rank)}
            missing = [chunk for chunk in range(self.num_chunks) if chunk not in seen]
            unseen += [(destination, source) for destination in base for source in missing]
        return sorted(unseen)


def plan_sweep(
    schedule: str,
    base: Sequence[Sequence[int]],
    num_variable: int,
    *,
    bridges: NDArray[np.integer[Any]] | None,
    seed: int,
) -> Sweep:
    """Returns the sweep in which every rank meets every chunk, `num_variable` at a time.

    A rank goes through the chunks it does not own in windows of `num_variable`, in an order that the schedule gives. A
    last window that would stay part empty begins the order again: each chunk is met once, those few once more. One rank
    that owns everything has nothing to meet, whatever `num_variable` says.

    Args:
        schedule: "cyclic": those of the next rank first, and so on round, so that ranks want different chunks at the
            same time; "random": by chance; "affinity": most bridge edges into the rank's base first; "fixed": the first
            super-epoch of "cyclic" for ever.
        base: the chunks that each rank owns, by rank.
        num_variable: how many variable chunks a rank holds; with 0, one super-epoch without any.
        bridges: [i, j] = edges from chunk j into chunk i, (C, C); only "affinity" needs it.
        seed: decides the order of "random".
    """
    if schedule not in _ORDERS:
        raise ConfigError(unknown_name(schedule, _ORDERS, family="sweep schedule"))
    owned = tuple(tuple(int(chunk) for chunk in chunks) for chunks in base)
    foreign = _foreign_in_cyclic_order(owned)
    num_variable = _checked_num_variable(num_variable, owned, foreign)
    orders = [_ORDERS[schedule](rank, owned[rank], foreign[rank], bridges, seed) for rank in range(len(owned))]
    num_super_epochs = 1
    if schedule != "fixed" and num_variable > 0:
        num_super_epochs = max(math.ceil(len(order) / num_variable) for order in orders)
    variable = tuple(
        tuple(_window(order, super_epoch * num_variable, num_variable) for order in orders)
        for super_epoch in range(num_super_epochs)
    )
    return Sweep(owned, variable)


def _foreign_in_cyclic_order(base: tuple[Chunks, ...]) -> list[Chunks]:
    """Returns, by rank, the chunks of the ranks after it, going round."""
    num_ranks, num_chunks = len(base), sum(len(chunks) for chunks in base)
    if num_chunks < num_ranks:
        raise ConfigError(
            f"Training in isolation needs a chunk for each rank; there are {num_ranks} ranks and {num_chunks} "
            f"chunk{'' if num_chunks == 1 else 's'}. Partition the graph into at least {num_ranks} parts, or start "
            f"fewer ranks."
        )
    owned = sorted(chunk for chunks in base for chunk in chunks)
    assert owned == list(range(num_chunks)), f"{base} does not own each chunk once"
    assert all(base), f"{base} leaves a rank without a chunk"
    return [
        tuple(chunk for further in range(1, num_ranks) for chunk in base[(rank + further) % num_ranks])
        for rank in range(num_ranks)
    ]


def _checked_num_variable(num_variable: int, base: tuple[Chunks, ...], foreign: list[Chunks]) -> int:
    if num_variable < 0:
        raise ConfigError(f"The number of variable chunks should be 0 or more; got {num_variable}.")
    if len(base) == 1:
        return 0
    rank = min(range(len(base)), key=lambda rank: len(foreign[rank]))
    if num_variable > len(foreign[rank]):
        raise ConfigError(
            f"{num_variable} variable chunks are more than there are: of {len(base[rank]) + len(foreign[rank])} chunks "
            f"rank {rank} owns {len(base[rank])}, which leaves {len(foreign[rank])}. Ask for at most "
            f"{len(foreign[rank])}, or partition the graph into more parts."
        )
    return num_variable


def _window(order: Chunks, start: int, size: int) -> Chunks:
    return tuple(order[position % len(order)] for position in range(start, start + size))


def _cyclic(rank: int, base: Chunks, foreign: Chunks, bridges: NDArray[np.integer[Any]] | None, seed: int) -> Chunks:
    return foreign


def _random(rank: int, base: Chunks, foreign: Chunks, bridges: NDArray[np.integer[Any]] | None, seed: int) -> Chunks:
    rng = np.random.Generator(np.random.Philox(key=int(fold_key(seed, _SWEEP, rank))))
    return tuple(int(chunk) for chunk in rng.permutation(np.array(foreign, np.int64)))


def _affinity(rank: int, base: Chunks, foreign: Chunks, bridges: NDArray[np.integer[Any]] | None, seed: int) -> Chunks:
    assert bridges is not None, "affinity goes by the bridge edges"
    edges_into_base = bridges[list(base)].sum(axis=0)
    # Stable: chunks with as many edges stay in cyclic order, in which other ranks want others.
    return tuple(sorted(foreign, key=lambda chunk: -int(edges_into_base[chunk])))


# The order in which a rank meets the chunks that it does not own.
_ORDERS: dict[str, Callable[[int, Chunks, Chunks, NDArray[np.integer[Any]] | None, int], Chunks]] = {
    "cyclic": _cyclic,
    "random": _random,
    "affinity": _affinity,
    "fixed": _cyclic,
}


def _share(numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> NDArray[np.float64]:
    out = np.zeros(denominator.shape)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
