"""Memory that the process has had once it keeps, large pages for large tables, and files for what is larger still."""

import ctypes
import os
import platform
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2  # of mallopt
KEPT = 1 << 31  # bytes at the end of the heap: beyond these it shrinks again
PADDED = 1 << 26  # bytes that the heap grows by at least
SMALL, LARGE = 1 << 12, 1 << 22  # bytes of a page; of a table for which larger ones are worth it
HUGE = 14  # of madvise
SHARE = 1 / 3  # of the machine's memory: an array that is larger lies in a file


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


def room(count: int, dtype: type, folder: Path, share: float = SHARE) -> np.ndarray:
    """Like numpy's empty. A very large array lies in a file in this folder that has no name and goes with the array;
    the system holds as much of it in memory as there is place for, and what is read next to each other is read soon."""
    size = count * np.dtype(dtype).itemsize
    if size <= share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        return np.empty(count, dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is told of here, not by a signal later
            return np.asarray(np.memmap(file, dtype, "r+", shape=count))
    except OSError as error:
        raise UserError(
            f"{folder}: no room for {size / 1e9:,.1f} GB ({error.strerror}); STRUCTSPARSE_CACHE names another folder"
        ) from error


def cut(array: np.ndarray, count: int) -> np.ndarray:
    """The first entries of an array that has `room`; what is left over of memory is given back, nothing copied."""
    if array.base is not None:
        return array[:count]
    array.resize(count, refcheck=False)
    return array
