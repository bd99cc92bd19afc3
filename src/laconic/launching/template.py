"""Loads once what all ranks of this machine need: ranks begin as copies of the process that loaded it.

    is_template = can_be_template()
    with loading_for_ranks(4):
        import laconic.trainer
    run_local_ranks(command, 4, loaded=main if is_template else None)

Importing torch and PyG takes seconds of a core in each process, and copying a process that has them some milliseconds.
Only what is the same for all ranks happens before: imports, and checks that start no thread (`processes/fork.py`).
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from laconic.processes import threads_per_rank

# Numpy's BLAS starts its threads when it is imported; we multiply matrices with torch.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


def can_be_template() -> bool:
    """Whether nothing was loaded yet that has read its settings, or has run: ask before `loading_for_ranks`."""
    return not {"numpy", "numba", "torch"} & set(sys.modules)


@contextmanager
def loading_for_ranks(num_ranks: int) -> Iterator[None]:
    """Inside, libraries find the variables of a rank when they are loaded; after, variables are as before.

    But for OMP_NUM_THREADS: its value is that of all ranks.
    """
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(threads_per_rank(num_ranks))
    added = {name: value for name, value in _ONE_THREAD.items() if name not in os.environ}
    os.environ.update(added)
    try:
        with loading():
            yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def loading() -> Iterator[None]:
    """While entered, Python's garbage collector rests: imports make many objects that stay, and next to no garbage.

    It looks at everything again and again otherwise, for a fifth of the time. What is there afterwards stays out of its
    sight, so that later rounds are quicker too, and copies of this process share it for longer.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
