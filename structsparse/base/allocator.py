"""Tuning of the C library's memory allocator: freed heap memory is kept for reuse."""

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # parameter numbers of the C function mallopt
_KEPT = 1 << 31  # bytes that may be free at the end of the heap before it shrinks
_GROWTH = 1 << 26  # bytes that the heap grows by at least


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for later arrays; returns whether this is possible (glibc only).

    By default glibc maps memory for each array above 32 MB and unmaps it when the array is freed. The kernel fills
    every page with zeros each time, which takes a quarter of the CPU time of a large language model. Freed memory
    does not always fit the next array, so the peak rises: by at most 45 % in our measurements (10 million words)."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, _KEPT - 1), mallopt(_TOP_PAD, _GROWTH)])
