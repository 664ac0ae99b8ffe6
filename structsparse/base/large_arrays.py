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

PAGE, LARGE = 1 << 12, 1 << 22  # bytes of a memory page; bytes from which on a tensor is put on large pages
_MADV_HUGEPAGE = 14  # argument of the C function madvise
SHARE = 1 / 3  # share of the machine's memory; larger arrays are mapped to a file


def zeros_on_large_pages(*shape: int) -> Tensor:
    """A tensor of zeros; if it is large, on memory pages of 2 MB, where Linux has such pages.

    On small pages, reading scattered rows costs a page look-up for each row."""
    table = torch.empty(*shape)
    if table.device.type == "cpu" and table.nbytes >= LARGE and platform.system() == "Linux":
        begin = -(-table.data_ptr() // PAGE) * PAGE
        size = table.data_ptr() + table.nbytes - begin
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_HUGEPAGE)  # advice: the system may ignore it
    return table.zero_()


def empty_array(count: int, dtype: type, folder: Path, share: float = SHARE) -> np.ndarray:
    """An uninitialized array; above a `share` of the machine's memory it is mapped to a file in this folder.

    The file has no name and is deleted with the array. The system keeps as much of it in memory as fits."""
    size = count * np.dtype(dtype).itemsize
    if size <= share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        return np.empty(count, dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            with contextlib.suppress(AttributeError):  # not every platform has posix_fallocate
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not a signal later
            return np.asarray(np.memmap(file, dtype, "r+", shape=count))
    except OSError as error:
        raise UserError(
            f"{folder}: no room for {size / 1e9:,.1f} GB ({error.strerror}); STRUCTSPARSE_CACHE names another folder"
        ) from error


def shrunk(array: np.ndarray, count: int) -> np.ndarray:
    """The first `count` entries of an array made by `empty_array`; the other memory is freed without a copy."""
    if array.base is not None:
        return array[:count]
    array.resize(count, refcheck=False)
    return array
