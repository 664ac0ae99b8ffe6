"""The interface of a structure: sequences or trees that are scored part by part."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Structure(ABC):
    """The set of all structures of an item, such as label sequences or parse trees, and how their scores are summed.

    `scores` are of the structure's own form, for a batch of items; `gold` is one structure for each, `lengths` int64
    [batch] the number of tokens. This is all that the structured losses rely on."""

    @abstractmethod
    def log_partition(self, scores, lengths: Tensor) -> Tensor:  # [batch]
        """log of the sum of exp(score) over all structures; its gradient, once, is the expected counts."""

    @abstractmethod
    def score(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """The score of one structure for each item."""

    @abstractmethod
    def best(self, scores, lengths: Tensor) -> Tensor:
        """The structure with the highest score."""

    @abstractmethod
    def add_cost(self, scores, gold: Tensor, lengths: Tensor, cost: float = 1.0):
        """The scores with `cost` added to every part that differs from gold."""

    def surprise(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """log_partition - score(gold): minus the logarithm of the probability of gold."""
        return self.log_partition(scores, lengths) - self.score(scores, gold, lengths)

    def best_k(self, scores, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best structures, the best first, and their scores [batch, k]."""
        raise NotImplementedError

    def marginals(self, scores, lengths: Tensor) -> Tensor:
        """The probability of each part."""
        raise NotImplementedError
