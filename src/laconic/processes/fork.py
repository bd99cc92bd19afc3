"""A process that begins as a copy of this one, with all that was imported here, and then runs a function.

It is what a process of its own would be: with variables, session, signals and output of its own, none of our open
files, and an exit code. It never returns into the code that forked it.
"""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Literal, NoReturn, final

from laconic.processes.enter import die_with
from laconic.processes.leaving import run_and_leave

Output = Literal["apart", "together", "inherited"]

_TASKS = "/proc/self/task"


def is_safe_to_fork() -> bool:
    """Whether a copy of this process would lack nothing: no thread has been started, in Python or below it.

    Threads are not copied, and what they held stays held forever. Importing torch, PyG and numba starts none; numpy's
    BLAS does unless it is told to use one (`launching/template.py`). GNU's OpenMP, by which numba's kernels run, ends a
    copy that uses it after it was used here.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    try:
        return len(os.listdir(_TASKS)) == 1 and not _has_run_parallel_kernel()
    except OSError:
        return False


def _has_run_parallel_kernel() -> bool:
    numba = sys.modules.get("numba")
    if numba is None:
        return False
    try:
        numba.threading_layer()
    except ValueError:
        return False
    return True


@final
class Forked:
    """A copy of this process that runs `main`; it has what `subprocess.Popen` has of pid, pipes and wait.

    Args:
        main: called in the copy; its SystemExit is the copy's exit code.
        environment: all variables of the copy. Libraries that were loaded here have read ours.
        output: as for GroupProcess.
    """

    def __init__(self, main: Callable[[], object], environment: Mapping[str, str], *, output: Output) -> None:
        # Numbers in the copy: what it writes to, by the descriptor that it has there.
        pipes = {"apart": (1, 2), "together": (1,), "inherited": ()}[output]
        ends = {descriptor: os.pipe() for descriptor in pipes}
        settled, settling = os.pipe()
        starter = os.getpid()
        # A signal that comes before the copy has its own handlers waits until it has.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                writes_to = {descriptor: end for descriptor, (_, end) in ends.items()}
                if output == "together":
                    writes_to[2] = writes_to[1]
                _live(main, environment, writes_to, starter, mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for end in (settling, *(end for _, end in ends.values())):
            os.close(end)
        # Until then it has no group of its own to be signalled by.
        os.read(settled, 1)
        os.close(settled)
        self.stdout: IO[bytes] | None = os.fdopen(ends[1][0], "rb", 0) if 1 in ends else None
        self.stderr: IO[bytes] | None = os.fdopen(ends[2][0], "rb", 0) if 2 in ends else None

    def wait(self) -> int:
        """Waits for its end and returns its exit code, -n if signal n ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _live(
    main: Callable[[], object],
    environment: Mapping[str, str],
    writes_to: Mapping[int, int],
    starter: int,
    mask: set[signal.Signals | int],
) -> NoReturn:
    """The life of a copy, from its first moment to its end."""
    try:
        os.setsid()
        die_with(starter)
        _forget_handlers()
        _connect(writes_to)
        os.environ.clear()
        os.environ.update(environment)
        if "numpy" in sys.modules:
            # Each process has random numbers of its own. Python's generator sees to that itself.
            sys.modules["numpy"].random.seed()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        run_and_leave(main)
    finally:
        # Whatever went wrong: the caller's code belongs to the process that forked.
        os._exit(1)


def _forget_handlers() -> None:
    """Sets signals back to what they are in a process that begins; those that are ignored stay so."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _connect(writes_to: Mapping[int, int]) -> None:
    """Gives the copy an input that is empty and its own output, and takes our open files from it.

    Among them is the pipe by whose end the starter sees that the copy stands on its own feet.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    for descriptor, end in writes_to.items():
        os.dup2(end, descriptor)
    for open_one in map(int, os.listdir("/proc/self/fd")):
        # What would not survive exec. Objects that were copied still hold the numbers: nobody else may get them.
        if open_one > 2 and open_one != nothing and _is_ours(open_one):
            os.dup2(nothing, open_one, inheritable=False)
    for descriptor in writes_to:
        name = "stdout" if descriptor == 1 else "stderr"
        # Unbuffered: what it says before it is killed should not be lost.
        raw = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _is_ours(descriptor: int) -> bool:
    try:
        return not os.get_inheritable(descriptor)
    except OSError:
        # That by which the folder was listed.
        return False
