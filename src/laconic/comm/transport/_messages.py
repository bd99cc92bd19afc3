"""Messages: every operation on CPU is one message per pair of ranks, all of them under way at once.

The tag of a message says which operation it belongs to, what that is for, and how long the message is. Gloo hands over
a message only to a rank that waits for its tag: ranks that do different things wait, and are told so. Gloo's own
collectives would mix their data, or abort the process where lengths differ; its all_to_all leaves a good third of a
link idle that is busy both ways.
"""

import queue
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from laconic.comm.transport._differences import Asked

# A tag has 31 bits. The first is ours: others may send with small tags over a process group that they made.
_OURS = 1 << 30
_NUMBER_BITS = 10
_PURPOSE_BITS = 20
# How long a thread may take to notice that its connections are broken.
_ABANDON_SECONDS = 2.0


def post_messages(
    rank: int,
    targets: Sequence[Tensor],
    sources: Sequence[Tensor],
    number: int,
    asked: Asked,
    *,
    waiter: "Waiter",
    timeout: float,
) -> "Messages":
    """Starts to send `sources[r]` to each rank r and to fill `targets[r]` from it; empty ones do not travel.

    Args:
        rank: who sends; what it has for itself is copied.
        targets, sources: one contiguous tensor per rank.
        number: of the operation, the same on all ranks: messages of several operations are told apart by it.
        asked: the operation, which fits on all ranks.
        waiter: waits for them.
        timeout: seconds, counted from the first wait.
    """
    num_ranks, works = len(sources), []
    # What is to come is announced first: who has it can then send without asking. In every round each rank sends to
    # another one, so that no link is asked for by all at once.
    for distance in range(1, num_ranks):
        peer = (rank - distance) % num_ranks
        if targets[peer].numel():
            works.append(dist.irecv(as_bytes(targets[peer]), peer, tag=_tag(number, asked, targets[peer])))
    for distance in range(1, num_ranks):
        peer = (rank + distance) % num_ranks
        if sources[peer].numel():
            works.append(dist.isend(as_bytes(sources[peer]), peer, tag=_tag(number, asked, sources[peer])))
    if targets[rank] is not sources[rank]:
        targets[rank].copy_(sources[rank])
    return Messages(works, waiter, timeout)


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns a flat view; gloo knows a handful of dtypes only, and what is merely moved needs none."""
    return tensor.view(-1).view(torch.uint8)


def _tag(number: int, asked: Asked, message: Tensor) -> int:
    purpose = zlib.crc32(f"{asked.purpose}; {asked.alike}; {message.nbytes}".encode()) % (1 << _PURPOSE_BITS)
    return _OURS | number % (1 << _NUMBER_BITS) << _PURPOSE_BITS | purpose


@final
class Messages:
    """Several messages, waited for like one operation of torch.distributed.

    Torch breaks all connections when a wait for a message runs out of time. So the wait that is worth the whole timeout
    runs in a thread, and whoever waits here for a moment can look around and come back.
    """

    def __init__(self, works: Sequence[Any], waiter: "Waiter", timeout: float) -> None:
        self._works = works
        self._waiter = waiter
        self._timeout = timeout
        self._over = threading.Event()
        self._error: str | None = None
        self._is_waited_for = False

    def wait(self, moment: timedelta) -> None:
        """Returns when all have come and gone; RuntimeError when one failed, or the moment is over."""
        if not self._works:
            return
        if not self._is_waited_for:
            self._is_waited_for = True
            self._waiter.take(self)
        if not self._over.wait(moment.total_seconds()):
            raise RuntimeError(f"{len(self._works)} messages are still under way")
        if self._error is not None:
            raise RuntimeError(self._error)

    def is_completed(self) -> bool:
        """Whether a wait returns, or raises, at once and for good."""
        return not self._works or self._over.is_set()

    def wait_for_all(self) -> None:
        """Waits for the whole timeout; in the thread of the waiter."""
        deadline = time.monotonic() + self._timeout
        try:
            for work in self._works:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        except RuntimeError as error:
            self._error = str(error)
        finally:
            self._over.set()

    def abandon(self) -> None:
        """Ends a wait that goes on in the thread of the waiter, by breaking all connections."""
        with suppress(RuntimeError):
            for work in self._works:
                work.wait(timedelta(milliseconds=1))
        self._over.wait(_ABANDON_SECONDS)


@final
class Waiter:
    """A thread that waits for messages, one operation after the other.

    Starting a thread for every operation would take longer than a small message does.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Messages | None] = queue.SimpleQueue()
        self._last: Messages | None = None
        # A daemon: a process that has to end does not stay for messages that will not come.
        self._thread = threading.Thread(target=self._work, name="messages", daemon=True)
        self._thread.start()

    def take(self, messages: Messages) -> None:
        """Waits for `messages` in the thread, after those before."""
        self._last = messages
        self._jobs.put(messages)

    def close(self, *, break_connections: bool) -> None:
        """Ends the thread; one that still waits when the interpreter ends would abort the process.

        Args:
            break_connections: whether to end a wait that goes on.
        """
        self._jobs.put(None)
        waits = self._last is not None and not self._last.is_completed()
        if self._last is not None and waits and break_connections:
            self._last.abandon()
        # Messages hold on to the store by which their connections were made.
        self._last = None
        # One that waits over connections of others is left to its wait.
        self._thread.join(0.0 if waits and not break_connections else _ABANDON_SECONDS)

    def _work(self) -> None:
        while (messages := self._jobs.get()) is not None:
            messages.wait_for_all()
