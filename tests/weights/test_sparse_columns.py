"""Tables with sparse columns: the columns of a dense table, and saving and loading at any number of entries."""

import numpy as np
import torch
from scipy import sparse

from structsparse.weights.sparse_columns import SparseColumns


def test_columns_are_those_of_a_dense_table_and_are_saved():
    rng = np.random.default_rng(0)
    dense = (rng.normal(size=(7, 12)) * (rng.random((7, 12)) < 0.3)).astype(np.float32)
    table = SparseColumns(7, 12)
    assert table.columns(torch.tensor([3, 1])).eq(0).all()
    table.replace([sparse.csr_array(dense.T[:5]), sparse.csr_array(dense.T[5:])])
    indices = torch.tensor([11, 0, 4])
    assert torch.equal(table.columns(indices), torch.from_numpy(dense[:, indices]))
    other = SparseColumns(7, 12)
    other.load_state_dict(table.state_dict())
    np.testing.assert_array_equal(other.matrix().toarray(), dense.T)
    assert len(other.values) == (dense != 0).sum()
