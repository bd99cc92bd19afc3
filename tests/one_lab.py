"""One lab at a time on this machine: a lab that starts removes what a killed one left, also that of another test."""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def one_lab() -> Iterator[None]:
    """Inside, no test in another process builds a lab."""
    with (Path(tempfile.gettempdir()) / "laconic-one-lab.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
