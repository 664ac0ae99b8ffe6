"""The model of word vectors: sparse codes of all words, and a dictionary of atoms, one for each dimension."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from structsparse.losses.reconstruction import SparseRows
from structsparse.tasks.embeddings.data import WordData
from structsparse.weights.columns import columns
from structsparse.weights.sparse_columns import SparseColumns

NOISE = 0.1  # standard deviation of the noise on the words that become the first atoms


class SparseCodes(nn.Module):
    """Word vectors as sparse codes: the association of a word and a context is about code . atoms[:, context].

    With `biases`, a number for each word and one for each context are added, as in GloVe. With `sparse_codes`, the
    table has no columns, and the codes are kept as sparse columns when they are final; before, they are zero."""

    def __init__(
        self, dimensions: int, words: int, contexts: int, biases: bool = False, sparse_codes: bool = False
    ) -> None:
        super().__init__()
        self.codes = SparseColumns(dimensions, words) if sparse_codes else None
        columns_of_table = 0 if sparse_codes else words
        self.table = nn.Parameter(torch.zeros(dimensions, columns_of_table))  # the codes: a column for each word
        self.dictionary = nn.Parameter(torch.zeros(dimensions, contexts))  # an atom for each dimension
        self.word_bias = nn.Parameter(torch.zeros(1, words)) if biases else None
        self.context_bias = nn.Parameter(torch.zeros(1, contexts)) if biases else None

    @property
    def dimensions(self) -> int:
        """Model of word vectors: the number of dimensions."""
        return len(self.table)

    @torch.no_grad()
    def start_from(self, data: WordData, seed: int) -> None:
        """Model of word vectors: set the atoms to random words with noise, of norm 1; all codes are zero."""
        rng = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(data.items, generator=rng)[: self.dimensions]
        rows = data.matrix[chosen.numpy()].toarray()
        self.dictionary.normal_(0.0, NOISE, generator=rng)
        self.dictionary[: len(chosen)] += torch.from_numpy(rows)
        self.dictionary /= self.dictionary.norm(dim=1, keepdim=True)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Model of word vectors: divide atoms with norms above 1 by their norms."""
        self.dictionary /= self.dictionary.norm(dim=1, keepdim=True).clamp(min=1)

    def forward(self, words: Tensor) -> Tensor:
        """Model of word vectors: the codes of some words, [dimensions, words]."""
        return columns(self.table, words) if self.codes is None else self.codes.columns(words)

    def vectors(self) -> np.ndarray | sparse.csr_array:
        """Model of word vectors: the codes of all words [words, dimensions], sparse if they are kept so."""
        return self.table.detach().cpu().numpy().T if self.codes is None else self.codes.matrix()

    def factors(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Model of word vectors: codes of some words and a dictionary, whose product is the reconstruction.

        Biases of words are codes of an atom of ones, and those of contexts are an atom with codes of one."""
        codes = self(words)
        if self.word_bias is None:
            return codes, self.dictionary
        codes = torch.cat([codes, columns(self.word_bias, words), torch.ones_like(codes[:1])])
        return codes, torch.cat([self.dictionary, torch.ones_like(self.context_bias), self.context_bias])

    def loss(self, loss: nn.Module, words: Tensor, rows: SparseRows) -> Tensor:
        """Model of word vectors: the loss of some words, summed over them and all contexts."""
        return loss(*self.factors(words), rows._replace(values=rows.values.to(self.dictionary.dtype)))
