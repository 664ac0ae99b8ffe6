"""Sweeps of a tagger: compiled passes by which online solvers update the weights after each tagged sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from structsparse.base.errors import UserError
from structsparse.kernels.solvers import online_chains as kernels
from structsparse.solvers.online import Sweeper, UpdateRule
from structsparse.weights.feature_tables import FeatureTable, GrowingTable

if TYPE_CHECKING:
    from structsparse.solvers.online import Online
    from structsparse.training.batches import Passage

LABEL_WEIGHTS = ("transitions", "start", "end")  # parameters for label pairs, first and last labels


class TaggingSweeper(Sweeper):
    """The sweeper of taggers: updates the weights online after each sentence; a growing table may get new rows."""

    def __init__(self, model, solver: Online) -> None:
        super().__init__(model, solver)
        self.scratch: kernels.ChainScratch | None = None
        # for the latest corpus: first token of each sentence; maximum count of tokens, and of features, in a sentence
        self.begins, self.longest, self.most = np.empty(0, np.int64), 0, 0

    def check(self) -> None:
        """Sweep of a tagger: raise an error if the model has edge features or no table of sparse features."""
        name, model = self.solver.name, self.model
        if not isinstance(model.scorer, FeatureTable):
            raise UserError(f"{name} moves tables of sparse features (model=sparse or growing), not {model.scorer}")
        if model.edges is not None:
            raise UserError(f"{name} does not support features.edges; choose another solver")

    def sweep(self, passage: Passage, rule: UpdateRule, clock: int) -> tuple[float, float, int]:
        """Sweep of a tagger: update the weights after each sentence in a block of sentences (passage).

        `clock` is the count of training sentences before this block. Returns the sum of losses, the sum of step sizes,
        and the change in the count of nonzero weights."""
        scorer, growing = self.model.scorer, isinstance(self.model.scorer, GrowingTable)
        if growing:
            self._release(scorer)
        arrays = passage.ids, passage.offsets, passage.begins, passage.gold
        corpus = kernels.TaggedCorpus(*(array.numpy() for array in arrays))
        order, done, totals = passage.sentences.numpy(), 0, np.zeros(3)
        while done < len(order):
            rows = self._rows(corpus, order[done], rule)
            state = rows, scorer.held if growing else 0, self._labels(rule), rule
            done, held, *sums = kernels.sweep(corpus, order, done, *state, self._scratch(corpus, rows, rule), clock)
            totals += sums
            if growing:
                scorer.hold(held)
        return float(totals[0]), float(totals[1]), int(totals[2])

    def _rows(self, corpus: kernels.TaggedCorpus, sentence: int, rule: UpdateRule) -> kernels.FeatureRows:
        """Sweep of a tagger: the feature weights as arrays for the kernel.

        A growing table first gets memory for all features of `sentence`."""
        scorer = self.model.scorer
        if isinstance(scorer, GrowingTable):
            first, last = corpus.begins[sentence], corpus.begins[sentence + 1]
            weights, features = scorer.reserve(int(corpus.offsets[last] - corpus.offsets[first]))
            slots = scorer.slots.numpy(), features.numpy()
        else:
            weights, slots = scorer.table.detach(), (np.empty(0, np.int32), np.empty(0, np.int64))
        past = self.solver.past(scorer.table, len(weights)) if rule.averaging else weights[:0]
        return kernels.FeatureRows(weights.numpy(), past.numpy(), *slots)

    def _labels(self, rule: UpdateRule) -> kernels.LabelWeights:
        """Sweep of a tagger: the weights of label pairs, first and last labels, and their sums for averaging."""
        weights = [self.model.get_parameter(name) for name in LABEL_WEIGHTS]
        past = [self.solver.past(p, len(p)) if rule.averaging else p.detach()[:0] for p in weights]
        return kernels.LabelWeights(*(tensor.detach().numpy() for tensor in (*weights, *past)))

    def _scratch(
        self, corpus: kernels.TaggedCorpus, rows: kernels.FeatureRows, rule: UpdateRule
    ) -> kernels.ChainScratch:
        """Sweep of a tagger: work memory of the kernel for the longest sentence of the corpus, reused if it fits."""
        # an array at another address means another corpus: measure its longest sentence
        if self.begins.ctypes.data != corpus.begins.ctypes.data:
            self.begins, self.longest = corpus.begins, int(np.diff(corpus.begins).max())
            self.most = int(np.diff(corpus.offsets[corpus.begins]).max()) if rule.passive else 0
        longest, most = self.longest, self.most
        scratch, labels = self.scratch, rows.weights.shape[1]
        if scratch is None or (len(scratch.rival), len(scratch.moving)) != (longest, most):
            width, kind = -(-labels // kernels.LANES) * kernels.LANES, rows.weights.dtype
            scratch = kernels.ChainScratch(
                emissions=np.empty((longest, width), kind),
                scores=np.empty((longest, width), kind),
                arrivals=np.empty(width, kind),
                transitions=np.empty((width, width), kind),
                rival=np.empty(longest, np.int64),
                counts=np.empty((most, labels), np.int32),
                moving=np.empty(most, np.int64),
                place=np.empty(0, np.int32),
                pairs=np.zeros((labels, labels), np.int32),
            )
        if rule.passive and len(scratch.place) < len(rows.weights):
            scratch = scratch._replace(place=np.full(len(rows.weights), -1, np.int32))
        self.scratch = scratch
        return scratch
