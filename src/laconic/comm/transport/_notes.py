"""Notes: what ranks leave in the store for each other when things go wrong.

Nothing here is part of a step that goes well: a rank writes where it waits only after a second of waiting.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

from torch.distributed import Store  # type: ignore[attr-defined]

from laconic.comm.transport._differences import NOTHING, Asked

Answer = TypeVar("Answer")

# A store on a machine that has vanished never answers, and torch's client would wait for it.
_ANSWER_SECONDS = 5.0


class StoreGoneError(Exception):
    """The store does not answer: whoever keeps it has ended."""


def left_key(rank: int) -> str:
    """Returns under which name a rank notes that it has left, with nothing more to say."""
    return f"closed/{rank}"


@final
@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a rank was last heard of.

    Args:
        number: the last operation that it said to wait at; -1 if it never did. It may have gone on since.
        asked: that operation.
        closed_after: how many operations it took part in before it left, with nothing more to say; None if it did not
            leave, or left because of trouble with others.
    """

    number: int = -1
    asked: Asked = NOTHING
    closed_after: int | None = None


@final
class Notes:
    """The notes of one group of ranks.

    Args:
        store: where they are; a connection that nobody else uses.
        rank: who writes here.
        num_ranks: how many there are.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int) -> None:
        self._store = store
        self.rank = rank
        self._num_ranks = num_ranks

    def announce_failure(self, message: str) -> None:
        """Leaves the reason why this rank ends, unless another was first."""
        self._ask(lambda: self._store.compare_set("failure", "", json.dumps([self.rank, message])))

    def failure(self) -> tuple[int, str] | None:
        """Returns the first rank that failed, and its message."""

        def look() -> tuple[int, str] | None:
            if not self._store.check(["failure"]):
                return None
            rank, message = json.loads(self._store.get("failure"))
            return int(rank), str(message)

        return self._ask(look)

    def tell_difference(self, message: str) -> str:
        """Leaves the message that ranks do different things, for all to raise; returns the first that was left."""

        def tell() -> str:
            return str(self._store.compare_set("difference", "", message).decode())

        return self._ask(tell)

    def difference(self) -> str | None:
        """Returns the message that ranks do different things, if one of them found that out."""
        return self._ask(
            lambda: str(self._store.get("difference").decode()) if self._store.check(["difference"]) else None
        )

    def wait_at(self, number: int, asked: Asked) -> None:
        """Says where this rank waits."""
        words = json.dumps([number, asked.words, asked.purpose, asked.alike])
        self._ask(lambda: self._store.set(f"waits/{self.rank}", words))

    def give_up(self) -> None:
        """Says that this rank has waited too long, and goes."""
        self._ask(lambda: self._store.set("given_up", ""))

    def was_given_up(self) -> bool:
        """Returns whether a rank has waited too long."""
        return self._ask(lambda: self._store.check(["given_up"]))

    def whereabouts(self) -> list[Whereabouts]:
        """Returns where each rank was last heard of."""
        return self._ask(lambda: [self._whereabouts(rank) for rank in range(self._num_ranks)])

    def close(self, num_operations: int | None) -> None:
        """Says that this rank leaves, with nothing more to say.

        Args:
            num_operations: how many it took part in; None where it leaves because of trouble with others.
        """

        def leave() -> None:
            self._store.set(left_key(self.rank), json.dumps(num_operations))
            self._store.add("num_closed", 1)

        self._ask(leave)

    def num_closed(self) -> int:
        """Returns how many ranks have left."""
        return self._ask(lambda: self._store.add("num_closed", 0))

    def _whereabouts(self, rank: int) -> Whereabouts:
        closed_after = json.loads(self._store.get(left_key(rank))) if self._store.check([left_key(rank)]) else None
        if not self._store.check([f"waits/{rank}"]):
            return Whereabouts(closed_after=closed_after)
        number, *asked = json.loads(self._store.get(f"waits/{rank}"))
        return Whereabouts(int(number), Asked(*asked), closed_after)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        answers: list[Answer] = []
        problems: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(question())
            except Exception as error:
                problems.append(error)

        thread = threading.Thread(target=ask, name="notes", daemon=True)
        thread.start()
        thread.join(_ANSWER_SECONDS)
        if not answers:
            raise StoreGoneError from (problems[0] if problems else None)
        return answers[0]
