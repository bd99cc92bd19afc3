"""Why an operation between processes did not end well: who failed, who is missing, who called something else."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from laconic.comm.transport._differences import Asked, tell_difference, tell_left
from laconic.comm.transport._notes import Notes, StoreGoneError, Whereabouts
from laconic.errors import CommunicationError, RankFailedError
from laconic.ranks import name_ranks


@final
@dataclass(frozen=True, slots=True)
class Trouble:
    """An operation that failed here.

    Args:
        number: of the operation.
        asked: the operation.
        timed_out: seconds after which it was given up; None where the connection broke.
        cause: what the backend said.
    """

    number: int
    asked: Asked
    timed_out: float | None
    cause: str


def diagnose(
    notes: Notes, trouble: Trouble, asked: Mapping[int, Asked], *, keeper: str, moment: float
) -> CommunicationError:
    """Returns the error to raise.

    Args:
        notes: what the others say.
        trouble: what happened here.
        asked: the last operations here, by number.
        keeper: who keeps the store, in words.
        moment: seconds after which a waiting rank says where it waits; two of them are given to all.
    """
    deadline = time.monotonic() + 2 * moment
    number = trouble.number
    try:
        notes.wait_at(number, trouble.asked)
        if trouble.timed_out is not None:
            notes.give_up()
        while True:
            whereabouts = notes.whereabouts()
            cause = find_known_cause(notes) or find_parted(notes, number, asked, whereabouts)
            if cause is not None:
                return cause
            missing = [rank for rank, where in enumerate(whereabouts) if where.number < number]
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(moment / 10)
        # A rank that gives up breaks its connections, which the others notice before their own time is over.
        given_up = notes.was_given_up()
    except StoreGoneError:
        return RankFailedError(
            f"Operation {number} ({trouble.asked}) failed, and the store that {keeper} keeps does not answer: {keeper} "
            f"has ended, by a failure or because its training loop ended sooner. Look at its output.",
            0 if keeper == "rank 0" else None,
        )
    if not missing:
        return CommunicationError(
            f"Operation {number} ({trouble.asked}) did not end, though no rank is missing. Check the network between "
            f"them. The backend says: {trouble.cause}"
        )
    listed = "; ".join(_describe(rank, whereabouts[rank]) for rank in missing)
    if trouble.timed_out is not None:
        return CommunicationError(
            f"Timed out after {trouble.timed_out:g} s at operation {number} ({trouble.asked}): waiting for "
            f"{name_ranks(missing)} ({listed}). Look what they do, or give a longer timeout."
        )
    if given_up:
        return CommunicationError(
            f"Another rank timed out, and gave up while this one was at operation {number} ({trouble.asked}), "
            f"waiting for {name_ranks(missing)} ({listed}). Look what they do, or give a longer timeout."
        )
    # A rank that says where it waits is alive.
    silent = [rank for rank in missing if whereabouts[rank].number < 0] or missing
    return RankFailedError(
        f"The connection broke at operation {number} ({trouble.asked}): {name_ranks(silent)} left without a "
        f"message ({listed}). It was killed, ran out of memory, or its machine is down. Look at its output.",
        silent[0] if len(silent) == 1 else None,
    )


def find_known_cause(notes: Notes) -> CommunicationError | None:
    """Returns the error for what another rank has told: that it failed, or that ranks do different things."""
    failure = notes.failure()
    if failure is not None:
        return RankFailedError(f"Rank {failure[0]} failed: {failure[1]}", failure[0])
    difference = notes.difference()
    return None if difference is None else CommunicationError(difference)


def find_parted(
    notes: Notes, number: int, asked: Mapping[int, Asked], whereabouts: Sequence[Whereabouts]
) -> CommunicationError | None:
    """Returns the error for ranks that do something else than this one, or have left; tells the others of the former.

    Args:
        notes: where to tell.
        number: of the operation that this rank is at.
        asked: the last operations here, by number.
        whereabouts: of all ranks.
    """
    for other in whereabouts:
        # Whether that rank is still there or not: at the same number, all ranks ask for the same.
        own = asked.get(other.number)
        if own is not None and not own.fits(other.asked):
            same = {rank: where.asked for rank, where in enumerate(whereabouts) if where.number == other.number}
            return CommunicationError(notes.tell_difference(tell_difference(other.number, {**same, notes.rank: own})))
    left = [
        rank
        for rank, where in enumerate(whereabouts)
        if where.closed_after is not None and where.closed_after <= number
    ]
    return CommunicationError(tell_left(left, number, asked[number])) if left else None


def _describe(rank: int, where: Whereabouts) -> str:
    if where.number >= 0:
        return f"rank {rank} waited last at operation {where.number}, {where.asked}"
    return f"rank {rank} was not heard of"
