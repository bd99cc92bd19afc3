"""Becomes a command, having asked to die with its starter. Run as a script, by its path:

python -I -S enter.py PID_OF_THE_STARTER COMMAND ARG...
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(starter: int) -> None:
    """Has the kernel kill this process when its starter ends: one that is killed cannot. On Linux; elsewhere it lives.

    Args:
        starter: its pid; this process exits if it has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        sys.exit(1)  # it was killed before we could ask


def main() -> None:
    """Replaces this process by the command; comes back only if there is none."""
    die_with(int(sys.argv[1]))
    # Python ignores these, and a command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    command = sys.argv[2:]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        # As a shell does: 127 for a command that is not there, 126 for one that cannot be run.
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
