"""The model of a tagger: a scorer of labels at each token (emissions), and a linear chain over the labels.

A scorer is any nn.Module that takes a TokenBatch and returns scores [tokens, labels] or [batch, time, labels]. A
subclass of `Scorer` may declare that its scores are linear in its parameters. Training can then end with a certificate
of optimality.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.structures.chain import Chain, ChainScores
from structsparse.weights.bags import bag_sum
from structsparse.weights.batch import Sizes, TokenBatch
from structsparse.weights.feature_tables import FeatureTable, Scorer

if TYPE_CHECKING:
    from structsparse.solvers.online import Online, Sweeper
    from structsparse.structures.edges import EdgeChain, EdgeScores
    from structsparse.tasks.tagging.edges import EdgeScorer


class SparseScorer(FeatureTable):
    """Tagger model: a linear scorer of sparse features.

    score[token, label] = sum of table[feature, label] over the features of the token."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(sizes.rows, sizes.labels))  # [features, labels]

    def forward(self, batch: TokenBatch) -> Tensor:
        """Tagger model: label scores from sparse features.

        The shape is [tokens, labels] for large float32 batches on the CPU, else [batch, time, labels] (padded)."""
        return batch.lay(bag_sum(self.table, batch.ids, batch.offsets))


class DenseScorer(Scorer):
    """Tagger model: a linear scorer of numeric columns (`features.dense`).

    score[token, label] = sum over columns of dense[token, column] * weights[column, label]."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        if sizes.dense == 0:
            raise UserError("model DenseScorer needs numeric columns; name them in features.dense")
        self.weights = nn.Parameter(torch.zeros(sizes.dense, sizes.labels))  # [numeric columns, labels]

    def forward(self, batch: TokenBatch) -> Tensor:
        """Tagger model: label scores from numeric columns.

        The shape is [tokens, labels] for large float32 batches on the CPU, else [batch, time, labels] (padded)."""
        return batch.lay(batch.dense.to(self.weights.dtype) @ self.weights)


class RecurrentScorer(Scorer):
    """Tagger model: a scorer with a bidirectional LSTM over embeddings of attributes (`features.codes`).

    Padding does not affect the scores: the backward LSTM starts at the last token of each sentence."""

    def __init__(self, sizes: Sizes, embedding: int = 32, hidden: int = 64) -> None:
        super().__init__()
        if not sizes.vocabularies:
            raise UserError("model RecurrentScorer needs coded attributes; name them in features.codes")
        self.embeddings = nn.ModuleList(nn.Embedding(size, embedding) for size in sizes.vocabularies)
        width = embedding * len(sizes.vocabularies)
        self.forwards = nn.LSTM(width, hidden, batch_first=True)
        self.backwards = nn.LSTM(width, hidden, batch_first=True)
        self.output = nn.Linear(2 * hidden, sizes.labels)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Tagger model: label scores from the LSTM.

        The shape is [tokens, labels] for large float32 batches on the CPU, else [batch, time, labels] (padded)."""
        embedded = [table(batch.codes[:, k]) for k, table in enumerate(self.embeddings)]
        inputs = batch.pad(torch.cat(embedded, dim=1))  # [batch, time, width], the concatenated embeddings
        left, _ = self.forwards(inputs)
        right, _ = self.backwards(batch.reverse(inputs))
        scores = self.output(torch.cat([left, batch.reverse(right)], dim=2))
        return scores.flatten(0, 1)[batch.places] if batch.flat(scores) else scores


class SumScorer(Scorer):
    """Tagger model: a scorer that adds the scores of several scorers, such as sparse features and an LSTM."""

    def __init__(self, sizes: Sizes, parts: Sequence[Callable[[Sizes], nn.Module]]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part(sizes) for part in parts)
        self.linear = all(isinstance(part, Scorer) and part.linear for part in self.parts)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Tagger model: the sum of the scores of several scorers.

        The shape is [tokens, labels] if all scorers return this shape, else [batch, time, labels] (padded)."""
        scores = [part(batch) for part in self.parts]
        if len({each.dim() for each in scores}) > 1:  # only some of the scorers return padded scores
            scores = [batch.pad(each) if each.dim() == 2 else each for each in scores]
        return torch.stack(scores).sum(0)


class Tagger(nn.Module):
    """The model of a tagger: a linear chain with a scorer of labels, and weights of neighbouring labels (transitions).

    Label pairs that `scorer.links` excludes have a transition score of zero. First and last labels have extra weights
    only if `scorer.ends` is true. `edges` is an optional scorer of edge features."""

    def __init__(self, scorer: nn.Module, labels: int, edges: EdgeScorer | None = None) -> None:
        super().__init__()
        self.scorer = scorer
        self.edges = edges
        self.transitions = nn.Parameter(torch.zeros(labels, labels))  # score of each pair of neighbouring labels
        self.start = nn.Parameter(torch.zeros(labels))  # score of each label at the first token
        self.end = nn.Parameter(torch.zeros(labels))  # score of each label at the last token
        declared = scorer if isinstance(scorer, Scorer) else Scorer()
        self.linear, self.ends = declared.linear, declared.ends
        self.register_buffer("links", declared.links, persistent=False)

    @property
    def structure(self) -> Chain | EdgeChain:
        """Tagger model: the structure of label sequences, a linear chain with or without edge features."""
        return Chain() if self.edges is None else self.edges.chain

    def sweeper(self, solver: Online) -> Sweeper:
        """Tagger model: the sweeper by which an online solver updates the weights after each sentence."""
        from structsparse.tasks.tagging.sweeps import TaggingSweeper  # not needed for prediction

        return TaggingSweeper(self, solver)

    def forward(self, batch: TokenBatch) -> ChainScores | EdgeScores:
        """Tagger model: the scores of a batch, for label sequences in a linear chain."""
        transitions, start, end = self.transitions, self.start, self.end
        if self.links is not None:
            transitions = transitions * self.links
        if not self.ends:
            start, end = start * 0.0, end * 0.0
        emissions = self.scorer(batch)
        if self.edges is not None:
            return self.edges(batch, emissions, transitions, start, end)
        return ChainScores(emissions, transitions, start, end)
