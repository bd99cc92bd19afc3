"""Removing namespaces with all that runs in them: of our own lab at its end, and of labs whose owner was killed."""

import fcntl
import logging
import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from laconic.lab import iproute, names
from laconic.lab.iproute import LabError

_log = logging.getLogger(__name__)
_LOCK = Path("/run/laconic-lab.lock")
_LOCK_SECONDS = 30.0
_KILL_SECONDS = 5.0


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keeps labs that start at the same moment from choosing one number, or removing the same leftovers."""
    descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"Another lab has been starting for {_LOCK_SECONDS:.0f} s (it holds {_LOCK}). End it first."
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers() -> None:
    """Removes labs whose owner is dead, which was killed before it could; call it while `one_at_a_time`."""
    for lab, namespaces in names.list_labs().items():
        if not lab.owner_lives():
            _log.info("Removing a lab that process %d left behind when it was killed.", lab.pid)
            remove_namespaces(namespaces)


def remove_namespaces(namespaces: Collection[str]) -> None:
    """Ends what still runs in these namespaces, and removes them. Those that are not there are passed over."""
    there = [namespace for namespace in namespaces if (names.NAMESPACES / namespace).exists()]
    if not there:
        return
    _kill_inside(there)
    try:
        iproute.call_all("ip", [f"netns del {namespace}" for namespace in there], keep_going=True)
    except LabError:
        # Someone else may have removed one.
        if any((names.NAMESPACES / namespace).exists() for namespace in there):
            raise


def _kill_inside(namespaces: Collection[str]) -> None:
    deadline = time.monotonic() + _KILL_SECONDS
    # Again until none is left: one may have started another in the meantime.
    while (found := _processes_inside(namespaces)) and time.monotonic() < deadline:
        for descriptor in found:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor in found:
            select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            os.close(descriptor)


def _processes_inside(namespaces: Collection[str]) -> list[int]:
    """Returns a descriptor, which no other process can come to bear, for each process in one of the namespaces."""
    inside = {_identity(names.NAMESPACES / namespace) for namespace in namespaces}
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if _identity(Path(f"/proc/{entry}/ns/net")) not in inside:
                continue
            descriptor = os.pidfd_open(int(entry))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is one that even this root may not look into: none of a lab's
        found.append(descriptor)
    return found


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
