"""Why an operation between processes did not end well: who failed, who is missing, who called something else."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from laconic.comm.transport._notes import Notes, StoreGoneError, Whereabouts
from laconic.errors import CommunicationError, RankFailedError
from laconic.ranks import name_ranks


@final
@dataclass(frozen=True, slots=True)
class Trouble:
    """An operation that failed here.

    Args:
        number: of the operation.
        call: the operation in words.
        timed_out: seconds after which it was given up; None where the connection broke.
        cause: what the backend said.
    """

    number: int
    call: str
    timed_out: float | None
    cause: str


def diagnose(notes: Notes, trouble: Trouble, *, keeper: str, moment: float) -> CommunicationError:
    """Returns the error to raise.

    Args:
        notes: what the others say.
        trouble: what happened here.
        keeper: who keeps the store, in words.
        moment: seconds after which a waiting rank says where it waits; two of them are given to all.
    """
    deadline = time.monotonic() + 2 * moment
    try:
        notes.wait_at(trouble.number, trouble.call)
        if trouble.timed_out is not None:
            notes.give_up()
        while True:
            failed = failed_rank(notes)
            if failed is not None:
                return failed
            whereabouts = notes.whereabouts()
            missing = [rank for rank, where in enumerate(whereabouts) if where.number < trouble.number]
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(moment / 10)
        # A rank that gives up breaks its connections, which the others notice before their own time is over.
        given_up = notes.was_given_up()
    except StoreGoneError:
        return RankFailedError(
            f"Operation {trouble.number} ({trouble.call}) failed, and the store that {keeper} keeps does not answer: "
            f"{keeper} has ended. Look at its output.",
            0 if keeper == "rank 0" else None,
        )
    if not missing:
        return _all_are_here(trouble, whereabouts)
    listed = "; ".join(_describe(rank, whereabouts[rank]) for rank in missing)
    if trouble.timed_out is not None:
        return CommunicationError(
            f"Timed out after {trouble.timed_out:g} s at operation {trouble.number} ({trouble.call}): waiting for "
            f"{name_ranks(missing)} ({listed}). Look what they do, or give a longer timeout."
        )
    if given_up:
        return CommunicationError(
            f"Another rank timed out, and gave up while this one was at operation {trouble.number} ({trouble.call}), "
            f"waiting for {name_ranks(missing)} ({listed}). Look what they do, or give a longer timeout."
        )
    # A rank that says where it waits is alive.
    silent = [rank for rank in missing if whereabouts[rank].number < 0] or missing
    return RankFailedError(
        f"The connection broke at operation {trouble.number} ({trouble.call}): {name_ranks(silent)} left without a "
        f"message ({listed}). It was killed, ran out of memory, or its machine is down. Look at its output.",
        silent[0] if len(silent) == 1 else None,
    )


def failed_rank(notes: Notes) -> RankFailedError | None:
    """Returns the error for a rank that announced its failure."""
    failure = notes.failure()
    return None if failure is None else RankFailedError(f"Rank {failure[0]} failed: {failure[1]}", failure[0])


def _all_are_here(trouble: Trouble, whereabouts: Sequence[Whereabouts]) -> CommunicationError:
    calls = {(where.number, where.call) for where in whereabouts}
    listed = "; ".join(_describe(rank, where) for rank, where in enumerate(whereabouts))
    if len(calls) > 1:
        return CommunicationError(f"Ranks disagree at operation {trouble.number} ({trouble.call}): {listed}.")
    return CommunicationError(
        f"Operation {trouble.number} ({trouble.call}) did not end, though no rank is missing. Check the network "
        f"between them. The backend says: {trouble.cause}"
    )


def _describe(rank: int, where: Whereabouts) -> str:
    if where.number >= 0:
        return f"rank {rank} waits at operation {where.number}, {where.call}"
    if where.closed:
        return f"rank {rank} has closed its transport"
    return f"rank {rank} was not heard of"
