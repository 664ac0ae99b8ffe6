"""Small batches of dated items for tests, and their dense designs."""

import numpy as np
import torch

from structsparse.tasks.temporal.data import DatedBatch
from structsparse.weights.dated_rows import DatedRows


def batch_of(periods: int, features: int, items: int = 120, seed: int = 0, centred: bool = True) -> DatedBatch:
    """Sparse rows of random numbers in random periods, and a response that drifts."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(items, features)) * (rng.random((items, features)) < 0.7)
    period = np.sort(rng.integers(periods, size=items))
    walks = 0.4 * rng.normal(size=(periods, features)).cumsum(axis=0)
    y = (rows * walks[period]).sum(axis=1) + rng.normal(size=items) + 0.5
    owner, columns = rows.nonzero()
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=items))])
    design = DatedRows(
        torch.from_numpy(columns.astype(np.int32)),
        torch.from_numpy(rows[owner, columns]),
        torch.from_numpy(offsets),
        torch.from_numpy(period),
        features,
        torch.from_numpy(rows.mean(axis=0)) if centred else None,
    )
    return DatedBatch(design, torch.from_numpy(y), 0.0, torch.arange(items), items)


def dense(batch: DatedBatch, periods: int) -> np.ndarray:
    """The design as a matrix [items, periods * features], by the rows of the design alone."""
    design = batch.design
    matrix = np.zeros((batch.items, periods, design.width))
    for n in range(batch.items):
        part = slice(int(design.offsets[n]), int(design.offsets[n + 1]))
        values = design.values[part] if len(design.values) else torch.ones(part.stop - part.start)
        matrix[n, int(design.period[n]), design.columns[part].numpy()] = values.numpy()
        if design.centre is not None:
            matrix[n, int(design.period[n])] -= design.centre.numpy()
    return matrix.reshape(batch.items, -1)
