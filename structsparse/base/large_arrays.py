"""Large arrays: tensors on memory pages of 2 MB, and arrays mapped to files if they are too large for memory."""

import contextlib
import ctypes
import os
import platform
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError

PAGE, LARGE = 1 << 12, 1 << 22  # in bytes: a usual memory page; the smallest tensor that is put on large pages
_MADV_HUGEPAGE = 14  # argument of the C function madvise that asks for large pages
SHARE = 1 / 3  # arrays that exceed this share of the machine's memory are mapped to a file


def zeros_on_large_pages(*shape: int) -> Tensor:
    """Make a tensor of zeros; on Linux, a large tensor is placed on memory pages of 2 MB.

    With the usual pages of 4 kB, each read of a random row of a large table costs a page look-up."""
    table = torch.empty(*shape)
    if table.device.type == "cpu" and table.nbytes >= LARGE and platform.system() == "Linux":
        begin = -(-table.data_ptr() // PAGE) * PAGE
        size = table.data_ptr() + table.nbytes - begin
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_HUGEPAGE)  # only a hint to the system
    return table.zero_()


def empty_array(count: int, dtype: type, folder: Path, share: float = SHARE) -> np.ndarray:
    """Make an uninitialized array; a large array is mapped to a file in `folder`.

    An array is large if it needs more than `share` times the memory of the machine. The file is deleted with the
    array."""
    size = count * np.dtype(dtype).itemsize
    if size <= share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        return np.empty(count, dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            with contextlib.suppress(AttributeError):  # not every platform has posix_fallocate
                os.posix_fallocate(file.fileno(), 0, size)  # if the disk is full, the error comes here
            return np.asarray(np.memmap(file, dtype, "r+", shape=count))
    except OSError as error:
        raise UserError(
            f"{folder}: no room for {size / 1e9:,.1f} GB ({error.strerror}); STRUCTSPARSE_CACHE names another folder"
        ) from error


def shrunk(array: np.ndarray, count: int) -> np.ndarray:
    """Shrink a large array made by `empty_array` to its first `count` entries, without a copy.

    The memory of the other entries is freed, unless the array is mapped to a file."""
    if array.base is not None:
        return array[:count]
    array.resize(count, refcheck=False)
    return array
