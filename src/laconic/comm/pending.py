"""Pending: what an operation that was started will bring, such as rows from other ranks.

pending = exchange.start(x)
...                             # work that does not need them
halo = pending.wait()
"""

from collections.abc import Callable
from typing import Generic, TypeVar, final

Result = TypeVar("Result")
Other = TypeVar("Other")


@final
class Pending(Generic[Result]):
    """A result that is under way.

    Args:
        finish: waits for the operation and returns its result. It is called once, by the first `wait`; after that, all
            that it holds on to is let go. If it raises, the next `wait` calls it again.
    """

    def __init__(self, finish: Callable[[], Result]) -> None:
        self._finish: Callable[[], Result] | None = finish
        self._result: Result

    @staticmethod
    def done(result: Result) -> "Pending[Result]":
        """Returns a result that is there already."""
        return Pending(lambda: result)

    def then(self, change: Callable[[Result], Other]) -> "Pending[Other]":
        """Returns what `change` makes of the result, when it is waited for."""
        return Pending(lambda: change(self.wait()))

    def wait(self) -> Result:
        """Blocks until the operation is over here, and returns its result; again at no cost.

        Raises CommunicationError where the operation cannot end.
        """
        if self._finish is not None:
            self._result = self._finish()
            self._finish = None
        return self._result
