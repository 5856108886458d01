"""Memory of a process that makes and drops large tensors all the time."""

import ctypes
import sys

_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for the next tensor of that size, where it is glibc; else nothing happens.

    By default every large tensor on a CPU is fresh memory from the system, whose pages are zeroed as they are touched.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
