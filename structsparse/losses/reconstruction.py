"""Reconstruction loss of word vectors: squared errors of a sparse matrix by codes and a dictionary."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from structsparse.base.errors import UserError

ENTRIES = 1 << 16  # entries of the matrix that are reconstructed together, if entries have weights of their own


class SparseRows(NamedTuple):
    """Rows of a sparse matrix for the reconstruction loss: the entries of row i are starts[i] : starts[i + 1]."""

    values: Tensor  # [entries], such as the pointwise mutual information of a word and a context
    columns: Tensor  # int64 [entries], the context of each entry
    starts: Tensor  # int64 [rows + 1]
    counts: Tensor | None = None  # [entries], how often word and context occurred together


class PMIReconstruction(nn.Module):
    """Reconstruction loss of word vectors: half the sum of weighted squares of x - a . d, over words and contexts.

    x is the association of a word and a context, such as their pointwise mutual information, a is the code of the word
    and d the dictionary column of the context. Pairs without an entry have x = 0. The matrix is never made dense.

    - weighting "none": all weights are 1.
    - weighting "glove": an entry has the weight min(1, count / most)^power, and pairs without an entry have weight 0.
    - weighting "entries": entries have weight 1, and pairs without an entry have the weight `rest`."""

    smooth = True  # whether the gradient is continuous

    def __init__(self, weighting: str = "none", rest: float = 0.0, most: float = 100.0, power: float = 0.75):
        super().__init__()
        if weighting not in ("none", "glove", "entries"):
            raise UserError(f"loss.weighting is {weighting}, expected none, glove or entries")
        if not 0 <= rest <= 1:
            raise UserError(f"loss.rest is {rest}, expected a weight from 0 to 1")
        if not (most > 0 and power > 0):
            raise UserError(f"loss.most={most} and loss.power={power} must be positive")
        self.weighting, self.rest = weighting, rest if weighting == "entries" else 0.0
        self.most, self.power = most, power

    def extra_repr(self) -> str:
        """Reconstruction loss: the weighting of entries, for the printed form of the module."""
        return f"weighting={self.weighting}"

    def forward(self, codes: Tensor, dictionary: Tensor, rows: SparseRows) -> Tensor:
        """Reconstruction loss of some words, a scalar: the sum over these words and all contexts.

        `codes` is [dimensions, words] and `dictionary` is [dimensions, contexts]."""
        if self.weighting == "none":
            pull = correlations(dictionary, rows)
            return rows.values.square().sum() / 2 - (pull * codes.T).sum() + self._squares(codes, dictionary)
        loss = self.rest * self._squares(codes, dictionary) if self.rest > 0 else codes.new_zeros(())
        row = torch.repeat_interleave(
            torch.arange(len(rows.starts) - 1, device=codes.device), rows.starts.diff(), output_size=len(rows.values)
        )
        for begin in range(0, len(rows.values), ENTRIES):
            part = slice(begin, begin + ENTRIES)
            arguments = codes, dictionary, row[part], rows.columns[part], rows.values[part], self._weights(rows, part)
            loss = loss + checkpoint(self._part, *arguments, use_reentrant=False, preserve_rng_state=False)
        return loss

    def _part(self, codes, dictionary, row, columns, values, weights) -> Tensor:
        """Reconstruction loss: the part of some entries, minus what they have in the sum over all pairs."""
        made = (codes.T[row] * dictionary.T[columns]).sum(dim=1)
        errors = weights * (values - made).square()
        return (errors - self.rest * made.square()).sum() / 2

    def _weights(self, rows: SparseRows, part: slice) -> Tensor:
        """Reconstruction loss: the weights of some entries."""
        if self.weighting == "entries":
            return torch.ones_like(rows.values[part])
        if rows.counts is None:
            raise UserError("loss.weighting=glove needs the counts of the entries: set features.association=log_count")
        return (rows.counts[part] / self.most).clamp(max=1.0).pow(self.power).to(rows.values.dtype)

    @staticmethod
    def _squares(codes: Tensor, dictionary: Tensor) -> Tensor:
        """Reconstruction loss: half the sum of squares of the whole reconstruction, by two small Gram matrices."""
        return ((codes @ codes.T) * (dictionary @ dictionary.T)).sum() / 2


def correlations(dictionary: Tensor, rows: SparseRows) -> Tensor:
    """Reconstruction loss: the product of sparse rows with the atoms of a dictionary, [words, dimensions].

    Without the contiguous copy, the sums of bags take ten times as long."""
    return F.embedding_bag(
        rows.columns, dictionary.T.contiguous(), rows.starts[:-1], mode="sum", per_sample_weights=rows.values
    )
