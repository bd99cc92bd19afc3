"""Watch: waits for an operation between processes, never for ever, and says who was in the way."""

import logging
import time
from datetime import timedelta
from typing import Any, final

from laconic.comm.transport._diagnosis import Trouble, diagnose, find_known_cause, find_parted
from laconic.comm.transport._differences import Asked
from laconic.comm.transport._notes import Notes, StoreGoneError
from laconic.errors import CommunicationError
from laconic.ranks import name_ranks

_log = logging.getLogger(__name__)

# A rank that waits this long says so, and looks whether another has failed. A step that goes well never gets there.
_MOMENT_SECONDS = 1.0
# Where others are is looked at after one moment, two, four, ... and then every so many seconds; these are also said.
_LONG_SECONDS = 30.0
# Another rank's note is compared with the call of the same number here, among so many of the last.
_REMEMBERED = 256


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
        self.had_trouble = False
        """Whether an operation could not be ended here."""
        self._keeper = keeper
        self._timeout = timeout
        self._moment = min(_MOMENT_SECONDS, timeout / 4)
        self._asked: dict[int, Asked] = {}

    def remember(self, number: int, asked: Asked) -> None:
        """Told of every operation that is started here."""
        self._asked[number] = asked
        self._asked.pop(number - _REMEMBERED, None)

    def wait(self, work: Any, number: int, asked: Asked) -> None:
        """Returns when `work` is done, or raises.

        Args:
            work: what torch.distributed gave for the operation.
            number: of the operation.
            asked: the operation itself.
        """
        begin = time.monotonic()
        moment = timedelta(seconds=self._moment)
        next_look = 0.0
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
                    raise self.explain(number, asked, error, timed_out=timed_out) from error
            # What is over may have ended well a moment too late: waiting once more takes no time, and tells.
            if not is_over:
                self._look_around(number, asked, waited, is_thorough=waited >= next_look)
                if waited >= next_look:
                    next_look = waited + min(waited, _LONG_SECONDS)

    def explain(self, number: int, asked: Asked, error: Exception, *, timed_out: bool) -> CommunicationError:
        """Returns what to raise for an operation that failed here with `error`."""
        self.had_trouble = True
        cause = str(error).strip().split("\n")[0]
        trouble = Trouble(number, asked, self._timeout if timed_out else None, cause)
        return diagnose(self.notes, trouble, {**self._asked, number: asked}, keeper=self._keeper, moment=self._moment)

    def _look_around(self, number: int, asked: Asked, waited: float, *, is_thorough: bool) -> None:
        try:
            cause = find_known_cause(self.notes)
            if cause is None and is_thorough:
                self.notes.wait_at(number, asked)
            if cause is None and (is_thorough or self.notes.num_closed()):
                whereabouts = self.notes.whereabouts()
                cause = find_parted(self.notes, number, {**self._asked, number: asked}, whereabouts)
                if is_thorough and waited >= _LONG_SECONDS:
                    missing = [rank for rank, where in enumerate(whereabouts) if where.number < number]
                    names = name_ranks(missing) if missing else "the network"
                    _log.warning("Waiting since %.0f s for %s at operation %d (%s).", waited, names, number, asked)
        except StoreGoneError:
            # The operation itself may still end well; if not, it will say so.
            return
        if cause is not None:
            self.had_trouble = True
            raise cause
