"""How our kernels are compiled: one decorator each for serial and parallel ones, and the number of threads.

@parallel_kernel
def scale(x, factor, out): ...
"""

from collections.abc import Callable
from typing import Any

import numba

# A compiled function takes arrays of several dtypes: what it takes is said in its docstring, not in its type.
Kernel = Callable[..., Any]

# Sums may be reordered and fused into vector instructions; NaN and infinity must still come through, because a diverged
# run has to be seen. So not all of fastmath.
_FLOAT_RULES = {"reassoc", "contract", "nsz"}

# A second thread takes some ten microseconds to wake (more on a busy machine); a core reads this much in that time.
SMALL_WORK = 1 << 16


def serial_kernel(function: Kernel) -> Kernel:
    """Compiles `function` on first use, keeps it on disk, and releases Python's lock while it runs."""
    kernel: Kernel = numba.njit(nogil=True, cache=True, fastmath=_FLOAT_RULES, error_model="numpy")(function)
    return kernel


def parallel_kernel(function: Kernel) -> Kernel:
    """Like `serial_kernel`, with `numba.prange` loops spread over the threads."""
    kernel: Kernel = numba.njit(parallel=True, nogil=True, cache=True, fastmath=_FLOAT_RULES, error_model="numpy")(
        function
    )
    return kernel


def inline_kernel(function: Kernel) -> Kernel:
    """Compiles a small function that other kernels call; it becomes part of its caller.

    Left to itself, LLVM keeps some as calls, which then count references to every array they are given, per edge.
    """
    kernel: Kernel = numba.njit(nogil=True, forceinline=True, fastmath=_FLOAT_RULES, error_model="numpy")(function)
    return kernel


def use_threads(num_threads: int, num_elements: int = SMALL_WORK) -> int:
    """Makes kernels called from this thread use `num_threads` threads; returns the number in force.

    Args:
        num_threads: how many are wanted; numba may have started fewer.
        num_elements: numbers that the kernel reads: below SMALL_WORK one thread is faster than waking another.
    """
    chosen = max(1, min(num_threads, int(numba.config.NUMBA_NUM_THREADS))) if num_elements >= SMALL_WORK else 1
    numba.set_num_threads(chosen)
    return chosen
