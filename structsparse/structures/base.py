"""Base of all structures, such as label sequences and trees: the common interface.

The score of a structure is the sum of the scores of its parts, such as labels or arcs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Structure(ABC):
    """Base of all structures: an interface to score, sum and maximise over all structures of an item.

    For example, an item is a sentence, and its structures are all possible label sequences. `scores` holds the scores
    of the parts (such as labels) for a batch of items, in a form that each subclass defines. `gold` holds the correct
    structure of each item. `lengths` int64 [batch] holds the token count of each item."""

    @abstractmethod
    def log_partition(self, scores, lengths: Tensor) -> Tensor:  # shape [batch]
        """Base of all structures: the log-partition, which is the log of the sum of exp(score) over all structures.

        The gradient with respect to the scores is the expected count of each part, such as a label or an arc."""

    @abstractmethod
    def score(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Base of all structures: the score of the structure `gold` of each item."""

    @abstractmethod
    def best(self, scores, lengths: Tensor) -> Tensor:
        """Base of all structures: the structure with the highest score for each item."""

    @abstractmethod
    def add_cost(self, scores, gold: Tensor, lengths: Tensor, cost: float = 1.0):
        """Base of all structures: the scores with `cost` added to each part that is not in the gold structure."""

    def surprise(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Base of all structures: the negative log-probability of the gold structure, log_partition - score(gold)."""
        return self.log_partition(scores, lengths) - self.score(scores, gold, lengths)

    def best_k(self, scores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Base of all structures: the k best structures of each item, the best first, and their scores [batch, k]."""
        raise NotImplementedError

    def marginals(self, scores, lengths: Tensor) -> Tensor:
        """Base of all structures: the marginal probability of each part, such as an arc or the label of a token."""
        raise NotImplementedError
