"""`Structure`, the interface of label sequences and trees whose score is a sum over parts such as transitions
or arcs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Structure(ABC):
    """All structures of an item, such as label sequences or parse trees, with their best structure and log-partition.

    `scores` are the scores of the parts for a batch of items, in a form that each subclass defines. `gold` holds one
    structure per item, `lengths` int64 [batch] the numbers of tokens. The structured losses rely on nothing else."""

    @abstractmethod
    def log_partition(self, scores, lengths: Tensor) -> Tensor:  # [batch]
        """The log-partition: log of the sum of exp(score) over all structures. Its gradient with respect to the scores
        is the expected count of each part; it can be taken once."""

    @abstractmethod
    def score(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """The score of the given structure of each item."""

    @abstractmethod
    def best(self, scores, lengths: Tensor) -> Tensor:
        """The structure with the highest score for each item."""

    @abstractmethod
    def add_cost(self, scores, gold: Tensor, lengths: Tensor, cost: float = 1.0):
        """The scores with `cost` added to every part that differs from gold."""

    def surprise(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """The negative log-probability of the gold structure: log_partition - score(gold)."""
        return self.log_partition(scores, lengths) - self.score(scores, gold, lengths)

    def best_k(self, scores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best structures of each item, the best first, and their scores [batch, k]."""
        raise NotImplementedError

    def marginals(self, scores, lengths: Tensor) -> Tensor:
        """The marginal probability of each part, such as a label at a token or an arc."""
        raise NotImplementedError
