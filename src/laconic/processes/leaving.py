"""How a process ends at once: what was promised for its end is done, and the interpreter is not taken down.

Taking down torch and PyG object by object takes up to a second, after which the kernel frees all of it anyway.
"""

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

# What Python itself ends with if the last of its output cannot be written.
_EXIT_CANNOT_WRITE = 120


def leave(code: int | str | None) -> NoReturn:
    """Ends this process with an exit code, as `sys.exit` understands it.

    In Python's own order: threads that are no daemons are waited for, functions of `atexit` are called, and the
    standard streams are flushed. Files that nobody closed are not.
    """
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    number = code if isinstance(code, int) else int(code is not None)
    try:
        # The executors of concurrent.futures tell their threads to end here, and nowhere else.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # Closed, or nobody reads it any more.
            number = number or _EXIT_CANNOT_WRITE
    os._exit(number & 0xFF)


def run_and_leave(main: Callable[[], object]) -> NoReturn:
    """Calls `main` and ends this process, whatever comes of it."""
    try:
        main()
    except SystemExit as end:
        leave(end.code)
    except KeyboardInterrupt:
        # What a shell says of a process that SIGINT ended.
        leave(130)
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave(0)
