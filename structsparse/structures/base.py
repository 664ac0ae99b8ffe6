"""Base of all structures, such as label sequences and trees: an interface for scores that are sums over parts."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Structure(ABC):
    """Base of all structures: all structures of an item, such as all label sequences, with their scores.

    `scores` holds the scores of the parts for a batch of items, in a form that each subclass defines. `gold` holds one
    structure per item. `lengths` int64 [batch] holds the numbers of tokens. The structured losses rely on nothing else.
    """

    @abstractmethod
    def log_partition(self, scores, lengths: Tensor) -> Tensor:  # shape [batch]
        """Base of all structures: the log-partition, which is the log of the sum of exp(score) over all structures.

        The gradient of the log-partition in the scores is the expected count of each part. The gradient can be taken
        once."""

    @abstractmethod
    def score(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Base of all structures: the score of the given structure of each item."""

    @abstractmethod
    def best(self, scores, lengths: Tensor) -> Tensor:
        """Base of all structures: the structure with the highest score for each item."""

    @abstractmethod
    def add_cost(self, scores, gold: Tensor, lengths: Tensor, cost: float = 1.0):
        """Base of all structures: the scores with `cost` added to every part that differs from gold."""

    def surprise(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Base of all structures: the negative log-probability of the gold structure, log_partition - score(gold)."""
        return self.log_partition(scores, lengths) - self.score(scores, gold, lengths)

    def best_k(self, scores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Base of all structures: the k best structures of each item, the best first, and the scores [batch, k]."""
        raise NotImplementedError

    def marginals(self, scores, lengths: Tensor) -> Tensor:
        """Base of all structures: the marginal probability of each part, such as a label at a token or an arc."""
        raise NotImplementedError
