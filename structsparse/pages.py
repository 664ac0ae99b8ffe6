"""Memory that the process has had once it keeps."""

import ctypes
import platform

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2  # of mallopt
KEPT = 1 << 31  # bytes at the end of the heap: beyond these it shrinks again
PADDED = 1 << 26  # bytes that the heap grows by at least


def keep_pages() -> bool:
    """Let freed memory serve the next array, where the C library is glibc; whether it is.

    By default glibc maps each array above 32 MB anew and gives it back when it is freed, so the kernel fills every page
    with zeros each time: a quarter of the CPU time of a large language model. Kept pages are not always those that the
    next array fits, so the peak of memory rises, by 45 % at worst so far (10 million words)."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(MMAP_MAX, 0), mallopt(TRIM_THRESHOLD, KEPT - 1), mallopt(TOP_PAD, PADDED)])
