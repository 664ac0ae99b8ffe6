"""A table whose columns are sparse, such as the codes of words under many more atoms than a word uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn


class SparseColumns(nn.Module):
    """A table [rows, columns] in memory that follows its nonzero entries; all are zero at first.

    Its arrays are saved in a `state_dict`, whatever their length."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.rows = rows
        self.register_buffer("values", torch.zeros(0))
        self.register_buffer("places", torch.zeros(0, dtype=torch.int32))  # the row of each entry
        self.register_buffer("starts", torch.zeros(columns + 1, dtype=torch.int64))  # where each column begins

    def replace(self, columns: Sequence[sparse.csr_array]) -> None:
        """Table with sparse columns: set all columns, given as the rows of some sparse matrices in their order."""
        whole = sparse.vstack(columns, format="csr")
        self.values = torch.from_numpy(whole.data.astype(np.float32))
        self.places = torch.from_numpy(whole.indices.astype(np.int32))
        self.starts = torch.from_numpy(whole.indptr.astype(np.int64))

    def columns(self, indices: Tensor) -> Tensor:
        """Table with sparse columns: some columns as a dense tensor [rows, indices]."""
        dense = self.matrix()[indices.cpu().numpy()].toarray()
        return torch.from_numpy(dense).T.to(indices.device).contiguous()

    def matrix(self) -> sparse.csr_array:
        """Table with sparse columns: its transpose [columns, rows], which shares the memory."""
        arrays = self.values.cpu().numpy(), self.places.cpu().numpy(), self.starts.cpu().numpy()
        return sparse.csr_array(arrays, shape=(len(self.starts) - 1, self.rows))

    def _load_from_state_dict(self, state_dict, prefix, *arguments) -> None:
        """Table with sparse columns: take arrays of any length from a `state_dict`."""
        for name, array in self.named_buffers(recurse=False):
            setattr(self, name, array.new_empty(state_dict.get(prefix + name, array).shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
