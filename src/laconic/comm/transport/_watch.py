"""Watch: waits for an operation between processes, never for ever, and says who was in the way."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, final

from laconic.comm.transport._diagnosis import Trouble, diagnose, failed_rank
from laconic.comm.transport._notes import Notes, StoreGoneError
from laconic.errors import CommunicationError

# A rank that waits this long says so, and looks whether another has failed. A step that goes well never gets there.
_MOMENT_SECONDS = 1.0


@final
class Watch:
    """How a rank waits.

    Args:
        notes: what ranks leave for each other.
        keeper: who keeps the notes, in words.
        timeout: seconds, for every wait.
    """

    def __init__(self, notes: Notes, keeper: str, timeout: float) -> None:
        self.notes = notes
        self._keeper = keeper
        self._timeout = timeout
        self._moment = min(_MOMENT_SECONDS, timeout / 4)

    def wait(self, work: Any, number: int, call: Callable[[], str]) -> None:
        """Returns when `work` is done, or raises.

        Args:
            work: what torch.distributed gave for the operation.
            number: of the operation.
            call: gives the operation in words; asked only when there is trouble.
        """
        begin = time.monotonic()
        moment = timedelta(seconds=self._moment)
        is_over = False
        while True:
            try:
                work.wait(moment)
                return
            except RuntimeError as error:
                waited = time.monotonic() - begin
                failed = is_over
                is_over = work.is_completed()
                if failed or (waited >= self._timeout and not is_over):
                    # The backend has the same timeout, and may be first to find it over.
                    timed_out = waited > 0.9 * self._timeout
                    raise self.explain(number, call(), error, timed_out=timed_out) from error
            # What is over may have ended well a moment too late: waiting once more takes no time, and tells.
            if not is_over:
                self._look_around(number, call)

    def explain(self, number: int, call: str, error: Exception, *, timed_out: bool) -> CommunicationError:
        """Returns what to raise for an operation that failed here with `error`."""
        trouble = Trouble(number, call, self._timeout if timed_out else None, str(error).strip().split("\n")[0])
        return diagnose(self.notes, trouble, keeper=self._keeper, moment=self._moment)

    def _look_around(self, number: int, call: Callable[[], str]) -> None:
        try:
            failed = failed_rank(self.notes)
            if failed is None:
                self.notes.wait_at(number, call())
        except StoreGoneError:
            # The operation itself may still end well; if not, it will say so.
            return
        if failed is not None:
            raise failed
