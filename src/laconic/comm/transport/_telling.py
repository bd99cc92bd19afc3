"""Telling: a wait that lasts is said on the screen, so that a user never looks at nothing."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

_FIRST_SECONDS = 2.0
_AGAIN_SECONDS = 30.0


@contextmanager
def telling(words: Callable[[], str]) -> Iterator[None]:
    """Inside, logs `words()` as a warning after two seconds, and then every thirty.

    Args:
        words: what is waited for; called in a thread of its own.
    """
    over = threading.Event()

    def tell() -> None:
        seconds = _FIRST_SECONDS
        while not over.wait(seconds):
            try:
                text = words()
            except RuntimeError:
                # The store has gone: whoever waits finds that out too.
                return
            if not over.is_set():
                _log.warning("%s", text)
            seconds = _AGAIN_SECONDS

    thread = threading.Thread(target=tell, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # What `words` refers to, such as a store, is let go of here and not some time later.
        thread.join(_FIRST_SECONDS)
