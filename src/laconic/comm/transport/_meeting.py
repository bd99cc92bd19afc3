"""Where ranks that are threads of one process meet: each operation has a number, and is there when all have come.

No copy and no sum happens here; a rank reads what the others brought and fills its own tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Condition
from typing import final

from torch import Tensor

from laconic.comm.transport._differences import Asked, tell_difference, tell_left
from laconic.comm.transport.base import describe, describe_failure
from laconic.errors import CommunicationError, RankFailedError
from laconic.ranks import name_ranks


@final
@dataclass(frozen=True, slots=True)
class Call:
    """What one rank brings to an operation.

    Args:
        operation: its name.
        setting: what has to be equal on all ranks beside the name; texts are shown, dtype and shape are so anyway.
        data: a copy of what it sends; None for a barrier.
        sizes: rows for each rank, where these differ between ranks.
        out_sizes: rows from each rank, likewise.
        purpose: what it is for, in words; equal on all ranks.
    """

    operation: str
    setting: tuple[object, ...] = ()
    data: Tensor | None = None
    sizes: tuple[int, ...] = ()
    out_sizes: tuple[int, ...] = ()
    purpose: str = ""

    @property
    def asked(self) -> Asked:
        """The call in words, for messages."""
        words = describe(self.operation, self.data)
        if self.sizes:
            words += f", rows to send {list(self.sizes)}, to receive {list(self.out_sizes)}"
        return Asked(words + "".join(f", {part}" for part in self.setting if isinstance(part, str)), self.purpose)


@dataclass(slots=True)
class _Meeting:
    calls: list[Call | None]
    misfit: str | None = None
    num_left: int = 0
    num_arrived: int = 0


@final
class MeetingPlace:
    """What the ranks of one `run_ranks` share."""

    def __init__(self, num_ranks: int, timeout: float) -> None:
        self.num_ranks = num_ranks
        self._timeout = timeout
        self._changed = Condition()
        self._meetings: dict[int, _Meeting] = {}
        self._ended: set[int] = set()
        self._failure: tuple[int, BaseException] | None = None

    def come(self, rank: int, number: int, call: Call) -> None:
        """Brings a call to operation `number`, without waiting."""
        with self._changed:
            meeting = self._meetings.setdefault(number, _Meeting([None] * self.num_ranks))
            meeting.calls[rank] = call
            meeting.num_arrived += 1
            if meeting.num_arrived == self.num_ranks:
                calls = [call for call in meeting.calls if call is not None]
                if not _fit(calls):
                    meeting.misfit = tell_difference(number, {other: call.asked for other, call in enumerate(calls)})
                self._changed.notify_all()

    def wait(self, rank: int, number: int) -> list[Call]:
        """Returns the calls of all ranks at operation `number`, once all have come."""
        with self._changed:
            meeting = self._meetings[number]
            self._changed.wait_for(lambda: self._is_decided(meeting), self._timeout)
            if meeting.misfit is not None:
                raise CommunicationError(meeting.misfit)
            # Where all have come there is nothing to miss: a rank that wakes up late goes on to what the others found.
            if self._failure is not None and meeting.num_arrived < self.num_ranks:
                failed, error = self._failure
                raise RankFailedError(f"Rank {failed} failed: {describe_failure(error)}", failed)
            missing = [other for other, call in enumerate(meeting.calls) if call is None]
            own = meeting.calls[rank]
            if missing and own is not None:
                raise self._vain(number, own, missing)
            meeting.num_left += 1
            if meeting.num_left == self.num_ranks:
                del self._meetings[number]
            return [call for call in meeting.calls if call is not None]

    def end(self, rank: int, error: BaseException | None) -> None:
        """Says that a rank will not come again; the first error is what all others hear of."""
        with self._changed:
            self._ended.add(rank)
            if error is not None and self._failure is None:
                self._failure = (rank, error)
            self._changed.notify_all()

    def wait_for_end(self) -> BaseException | None:
        """Returns when all ranks have ended, or at once when one has failed, with its error."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or len(self._ended) == self.num_ranks)
            return self._failure[1] if self._failure is not None else None

    def _is_decided(self, meeting: _Meeting) -> bool:
        if self._failure is not None or meeting.num_arrived == self.num_ranks:
            return True
        return any(call is None and rank in self._ended for rank, call in enumerate(meeting.calls))

    def _vain(self, number: int, call: Call, missing: Sequence[int]) -> CommunicationError:
        ended = [rank for rank in missing if rank in self._ended]
        if ended:
            return CommunicationError(tell_left(ended, number, call.asked))
        return CommunicationError(
            f"Timed out after {self._timeout:g} s at operation {number} ({call.asked}): "
            f"waiting for {name_ranks(missing)}. Look what they do, or give a longer timeout."
        )


def _fit(calls: Sequence[Call]) -> bool:
    first = calls[0]
    wanted = (first.purpose, first.operation, first.setting)
    if any((call.purpose, call.operation, call.setting) != wanted for call in calls):
        return False
    if not first.sizes:
        return True
    return all(
        calls[sender].sizes[receiver] == calls[receiver].out_sizes[sender]
        for sender in range(len(calls))
        for receiver in range(len(calls))
    )
