"""Memory that the process has had once it keeps, and large pages for large tables."""

import ctypes
import platform

import torch
from torch import Tensor

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2  # of mallopt
KEPT = 1 << 31  # bytes at the end of the heap: beyond these it shrinks again
PADDED = 1 << 26  # bytes that the heap grows by at least
SMALL, LARGE = 1 << 12, 1 << 22  # bytes of a page; of a table for which larger ones are worth it
HUGE = 14  # of madvise


def keep_pages() -> bool:
    """Let freed memory serve the next array, where the C library is glibc; whether it is.

    By default glibc maps each array above 32 MB anew and gives it back when it is freed, so the kernel fills every page
    with zeros each time: a quarter of the CPU time of a large language model. Kept pages are not always those that the
    next array fits, so the peak of memory rises, by 45 % at worst so far (10 million words)."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(MMAP_MAX, 0), mallopt(TRIM_THRESHOLD, KEPT - 1), mallopt(TOP_PAD, PADDED)])


def roomy_zeros(*shape: int) -> Tensor:
    """torch.zeros; a large table in pages of 2 MB where Linux has them to give, as numpy has them. Rows that are read
    here and there among many pages cost a look for the page as well as for the row."""
    found = torch.empty(*shape)
    if found.device.type == "cpu" and found.nbytes >= LARGE and platform.system() == "Linux":
        begin = -(-found.data_ptr() // SMALL) * SMALL
        size = found.data_ptr() + found.nbytes - begin
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), HUGE)  # advice: it may be refused
    return found.zero_()
