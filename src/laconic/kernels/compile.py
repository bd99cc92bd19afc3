"""How our kernels are compiled: one decorator each for serial and parallel ones, and the number of threads.

@parallel_kernel
def scale(x, factor, out): ...
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, final

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
    compiled = numba.njit(parallel=True, nogil=True, cache=True, fastmath=_FLOAT_RULES, error_model="numpy")(function)
    return ParallelKernel(compiled)


@final
class ParallelKernel:
    """A compiled parallel kernel that any number of Python threads may call at once.

    Numba's layers omp and tbb see to that themselves: each caller has threads of its own, as many as it has set. The
    layer workqueue, numba's last resort, has one queue for all and ends the process when two callers meet in it, even
    if each wants one thread: there they take turns.
    """

    def __init__(self, compiled: Kernel) -> None:
        self.compiled = compiled

    def __call__(self, *arguments: Any) -> Any:
        if threading_layer() != "workqueue":
            return self.compiled(*arguments)
        with _TURN:
            return self.compiled(*arguments)


# One for all kernels, because there is one queue for all.
_TURN = threading.Lock()


@functools.cache
def threading_layer() -> str:
    """Returns what runs numba's threads: "omp", "tbb" or "workqueue". Starts them, if no kernel has yet."""
    # Numba chooses when the threads start, and does not say before; asking for their number starts them.
    numba.get_num_threads()
    return str(numba.threading_layer())


def load_compiler() -> None:
    """Loads what numba loads before the first kernel, whichever that is; starts no thread."""
    _nothing()


@serial_kernel
def _nothing():
    """Does nothing."""


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
