"""A process that is signalled as a group with its children, collected at its end, and never outlives its starter."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, final

from laconic.processes.fork import Forked, Output

Stream = Literal["stdout", "stderr"]
Work = Sequence[str] | Callable[[], object]
"""A command, or a function for a copy of this process."""

_ENTER = Path(__file__).with_name("enter.py")


@final
class GroupProcess:
    """A command or a function that runs, leading a session and a group of its own: it is signalled with its children.

    So Ctrl-C at the terminal reaches the starter alone, who decides. If the starter is killed, or the thread that
    started it ends, the kernel kills the process. Needs Linux.

    Args:
        number: of the host or rank, whatever the starter counts.
        work: the program and its arguments, or a function that a copy of this process runs (`fork.py`).
        environment: all its variables.
        output: "apart" reads stdout and stderr through a pipe each, "together" both through that of stdout, and
            "inherited" leaves them where the starter's go.
        inside: a command that ends by becoming the one that follows it, such as `ip netns exec lab-0`; none for a
            function.
    """

    def __init__(
        self,
        number: int,
        work: Work,
        environment: Mapping[str, str],
        *,
        output: Output,
        inside: Sequence[str] = (),
    ) -> None:
        self.number = number
        self.exit_code: int | None = None
        """As a shell gives it, 128 + n for one that signal n ended; None while it runs."""
        self.was_ended = False
        """Whether the starter told it to end; for the starter to set."""
        self._process: subprocess.Popen[bytes] | Forked
        if callable(work):
            self._process = Forked(work, environment, output=output)
        else:
            self._process = _start([*inside, *_enter(), *work], environment, output)
        self.descriptor = os.pidfd_open(self._process.pid)
        """Can be read once the process has ended."""
        self.pipes: dict[Stream, int] = {}
        """Where to read its output."""
        if self._process.stdout is not None:
            self.pipes["stdout"] = self._process.stdout.fileno()
        if self._process.stderr is not None:
            self.pipes["stderr"] = self._process.stderr.fileno()

    def signal(self, number: int) -> None:
        """Signals the process and its children, unless it has been collected."""
        if self.exit_code is None:
            # Not collected, so its number, and that of its group, cannot be another's.
            os.killpg(self._process.pid, number)

    def collect(self) -> None:
        """Waits for the end of the process, and ends the children that it left."""
        if self.exit_code is None:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.signal(signal.SIGKILL)
            code = self._process.wait()
            self.exit_code = code if code >= 0 else 128 - code

    def close(self) -> None:
        """Ends it if it still runs, and gives back what it held."""
        self.signal(signal.SIGKILL)
        self.collect()
        os.close(self.descriptor)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _enter() -> list[str]:
    return [sys.executable, "-I", "-S", str(_ENTER), str(os.getpid())]


def _start(command: Sequence[str], environment: Mapping[str, str], output: Output) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None if output == "inherited" else subprocess.PIPE,
        stderr={"apart": subprocess.PIPE, "together": subprocess.STDOUT, "inherited": None}[output],
        env=environment,
        start_new_session=True,
    )
