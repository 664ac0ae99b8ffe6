"""Ways through sentences, one after another: what a model's scores, its best rivals and its features are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from structsparse.errors import UserError
from structsparse.growing import GrowingScorer
from structsparse.kernels import online as chains
from structsparse.kernels import tree_walk as trees
from structsparse.kernels.online import Rule
from structsparse.models import SparseScorer, Tagger
from structsparse.parser import ArcScorer, Parser
from structsparse.tasks.batches import Passage

if TYPE_CHECKING:
    from structsparse.solvers.online import Online

__all__ = ["Rule", "Walk", "walk_of"]
CHAIN = ("transitions", "start", "end")


class Walk(ABC):
    """Through the sentences of one model, whose weights it moves for a solver."""

    def __init__(self, model: nn.Module, solver: Online) -> None:
        self.model, self.solver = model, solver

    @staticmethod
    @abstractmethod
    def check(model: nn.Module, name: str) -> None:
        """Refuse a model that the solver of this name cannot move."""

    @abstractmethod
    def go(self, passage: Passage, rule: Rule, clock: int) -> tuple[float, float, int]:
        """Sums of losses and of steps, and the change of the number of weights that are not zero."""


class TagWalk(Walk):
    """Sequences of labels; the table may grow on the way."""

    def __init__(self, model: Tagger, solver: Online) -> None:
        super().__init__(model, solver)
        self.scratch: chains.Scratch | None = None
        self.begins, self.longest, self.most = np.empty(0, np.int64), 0, 0  # of the corpus seen last, see _scratch

    @staticmethod
    def check(model: Tagger, name: str) -> None:
        if type(model.scorer) not in (SparseScorer, GrowingScorer):
            raise UserError(f"{name} moves tables of sparse features (model=sparse or growing), not {model.scorer}")
        if model.edges is not None:
            raise UserError(f"{name} goes from sentence to sentence and knows no features.edges; choose another solver")

    def go(self, passage: Passage, rule: Rule, clock: int) -> tuple[float, float, int]:
        scorer, growing = self.model.scorer, isinstance(self.model.scorer, GrowingScorer)
        if growing:
            self._release(scorer)
        corpus = chains.Corpus(*(getattr(passage, name).numpy() for name in chains.Corpus._fields))
        order, done, total = passage.sentences.numpy(), 0, np.zeros(3)
        while done < len(order):
            rows = self._rows(scorer, corpus, order, done, rule)
            state = rows, scorer.held if growing else 0, self._labels(rule), rule
            done, held, *sums = chains.sweep(corpus, order, done, *state, self._scratch(corpus, rows, rule), clock)
            total += sums
            if growing:
                scorer.hold(held)
        return float(total[0]), float(total[1]), int(total[2])

    def _release(self, scorer: GrowingScorer) -> None:
        """Rows of zeros go. For the mean they are forgotten, so without a prox they stay: they are zero by chance."""
        state = self.solver.state[scorer.table]
        if self.solver.average and not state.pop("killed", False):
            return
        kept = scorer.release()
        if kept is not None and "past" in state:
            state["past"] = state["past"][kept]

    def _rows(self, scorer, corpus: chains.Corpus, order: np.ndarray, done: int, rule: Rule) -> chains.Rows:
        """The weights, in a growing table with room for the next sentence at least."""
        if isinstance(scorer, SparseScorer):
            weights, found = scorer.table.detach(), (np.empty(0, np.int32), np.empty(0, np.int64))
        else:
            first, last = corpus.begins[order[done]], corpus.begins[order[done] + 1]
            weights, features = scorer.reserve(int(corpus.offsets[last] - corpus.offsets[first]))
            found = scorer.slots.numpy(), features.numpy()
        past = self.solver.past(scorer.table, len(weights)) if rule.averaging else weights[:0]
        return chains.Rows(weights.numpy(), past.numpy(), *found)

    def _labels(self, rule: Rule) -> chains.Labels:
        own = [getattr(self.model, name) for name in CHAIN]
        past = [self.solver.past(p, len(p)) if rule.averaging else p.detach()[:0] for p in own]
        return chains.Labels(*(tensor.detach().numpy() for tensor in (*own, *past)))

    def _scratch(self, corpus: chains.Corpus, rows: chains.Rows, rule: Rule) -> chains.Scratch:
        if self.begins.ctypes.data != corpus.begins.ctypes.data:  # being held, no other can come to lie where it does
            self.begins, self.longest = corpus.begins, int(np.diff(corpus.begins).max())
            self.most = int(np.diff(corpus.offsets[corpus.begins]).max()) if rule.passive else 0
        longest, most = self.longest, self.most
        known, labels = self.scratch, rows.weights.shape[1]
        if known is None or (len(known.rival), len(known.moving)) != (longest, most):
            width, kind = -(-labels // chains.LANES) * chains.LANES, rows.weights.dtype
            known = chains.Scratch(
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
        if rule.passive and len(known.place) < len(rows.weights):
            known = known._replace(place=np.full(len(rows.weights), -1, np.int32))
        self.scratch = known
        return known


class TreeWalk(Walk):
    """Trees whose arcs are scored one by one."""

    def __init__(self, model: Parser, solver: Online) -> None:
        super().__init__(model, solver)
        self.corpus: trees.Corpus | None = None  # seen last
        self.scratch: trees.Scratch | None = None

    @staticmethod
    def check(model: Parser, name: str) -> None:
        if type(model.scorer) is not ArcScorer:
            raise UserError(f"{name} moves tables of features of arcs (model=arcs), not {model.scorer}")

    def go(self, passage: Passage, rule: Rule, clock: int) -> tuple[float, float, int]:
        begins = passage.begins.numpy()
        if self.corpus is None or self.corpus.begins.ctypes.data != begins.ctypes.data:
            self._begin(passage)  # being held, no other corpus can come to lie where this one does
        table, structure = self.model.scorer.table, self.model.structure
        past = self.solver.past(table, len(table)) if rule.averaging else table.detach()[:0]
        weights, kind = (table.detach().view(-1).numpy(), past.view(-1).numpy()), structure.native.projective
        order = passage.sentences.numpy()
        return trees.sweep(self.corpus, order, *weights, kind, structure.single_root, rule, self.scratch, clock)

    def _begin(self, passage: Passage) -> None:
        arrays = (getattr(passage, name).numpy() for name in ("ids", "offsets", "begins", "gold"))
        ids, offsets, begins, gold = arrays
        lengths = np.diff(begins)
        self.corpus = trees.Corpus(ids, offsets, begins, gold, np.concatenate([[0], np.cumsum(lengths**2)]))
        most = 2 * int(lengths.max()) * int(np.diff(offsets).max(initial=0))  # features of a wrong tree and of gold
        counts, amounts = np.zeros(len(self.model.scorer.table), np.int16), np.empty(most, np.int16)
        self.scratch = trees.Scratch(counts, np.empty(most, np.int32), amounts, int(lengths.max()))


def walk_of(model: nn.Module) -> type[Walk]:
    for kind, walk in ((Tagger, TagWalk), (Parser, TreeWalk)):
        if isinstance(model, kind):
            return walk
    raise UserError(f"no way from sentence to sentence is known for a {type(model).__name__}; choose another solver")
