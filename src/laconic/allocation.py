"""Memory that a step frees is kept for the next: fresh pages from the system cost a good part of a step.

docs/decisions/0010 has the measurement. LACONIC_KEEP_MEMORY=0 leaves the C library's allocator as it is.
"""

import ctypes
import os
import sys
from functools import cache

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@cache
def keep_freed_memory() -> None:
    """From now on large blocks come from the heap, which is not given back to the system while the process lives."""
    if sys.platform != "linux" or os.environ.get("LACONIC_KEEP_MEMORY") == "0":
        return
    # Other C libraries have no such setting.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
