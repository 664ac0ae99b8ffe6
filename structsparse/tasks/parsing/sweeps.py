"""Ways through sentences, one after another: what a model's scores, its best rivals and its features are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from structsparse.base.errors import UserError
from structsparse.kernels.solvers import online_chains as chains
from structsparse.kernels.solvers import online_trees as trees
from structsparse.kernels.solvers import online_trees_by_keys as keyed
from structsparse.kernels.solvers.online_chains import Rule
from structsparse.kernels.weights import key_table
from structsparse.tasks.parsing.growing import GrowingArcScorer
from structsparse.tasks.parsing.model import ArcScorer, Parser
from structsparse.tasks.tagging.growing import GrowingScorer
from structsparse.tasks.tagging.model import SparseScorer, Tagger

if TYPE_CHECKING:
    from structsparse.solvers.online import Online
    from structsparse.tasks.parsing.data import ArcPassage
    from structsparse.training.batches import Passage

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

    def _release(self, scorer: GrowingScorer | GrowingArcScorer) -> None:
        """Rows of zeros go. For the mean they are forgotten, so without a prox they stay: they are zero by chance."""
        state = self.solver.state[scorer.table]
        if self.solver.average and not state.pop("killed", False):
            return
        kept = scorer.release()
        if kept is not None and "past" in state:
            state["past"] = state["past"][kept]


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
        self.source: object | None = None  # seen last
        self.corpus: trees.Corpus | None = None
        self.scratch: trees.Scratch | None = None

    @staticmethod
    def check(model: Parser, name: str) -> None:
        if type(model.scorer) is not ArcScorer:
            raise UserError(f"{name} moves tables of features of arcs (model=arcs or arcs_growing), not {model.scorer}")

    def go(self, passage: ArcPassage, rule: Rule, clock: int) -> tuple[float, float, int]:
        if self.source is not passage.source:
            self._begin(passage)
        table, structure = self.model.scorer.table, self.model.structure
        past = self.solver.past(table, len(table)) if rule.averaging else table.detach()[:0]
        weights, kind = (table.detach().view(-1).numpy(), past.view(-1).numpy()), structure.native.projective
        order = passage.sentences.numpy()
        return trees.sweep(self.corpus, order, *weights, kind, structure.single_root, rule, self.scratch, clock)

    def _begin(self, passage: ArcPassage) -> None:
        source = self.source = passage.source
        bags, longest = source.bags, int(source.lengths.max())
        self.corpus = trees.Corpus(bags.ids, bags.offsets, source.offsets, source.gold, source.arcs)
        most = 2 * longest * int(np.diff(bags.offsets).max(initial=0))  # features of a wrong tree and of gold
        counts, amounts = np.zeros(len(self.model.scorer.table), np.int16), np.empty(most, np.int16)
        self.scratch = trees.Scratch(counts, np.empty(most, np.int32), amounts, longest)


class KeyWalk(Walk):
    """The same, with a table that grows on the way and is searched by the keys of features."""

    def __init__(self, model: Parser, solver: Online) -> None:
        super().__init__(model, solver)
        self.source: object | None = None  # seen last
        self.moves: keyed.Moves | None = None

    @staticmethod
    def check(model: Parser, name: str) -> None:
        if model.scorer.table.dtype != torch.float32:
            raise UserError(
                f"{name} moves float32 weights of model=arcs_growing alone (trainer.precision); or take arcs"
            )

    def go(self, passage: ArcPassage, rule: Rule, clock: int) -> tuple[float, float, int]:
        source = passage.source
        self._release(self.model.scorer)
        if self.source is not source:
            self.source = source
            self.moves = keyed.moves_for(len(source.says.bases), int(source.lengths.max()))
        done, total = 0, np.zeros(3)
        while done < len(passage.sentences):
            done, *sums = self._some(passage, done, rule, clock)
            total += sums
        return float(total[0]), float(total[1]), int(total[2])

    def _some(self, passage: ArcPassage, done: int, rule: Rule, clock: int) -> tuple:
        """As many sentences as there is room for. Slots are held on to no longer: larger ones take their place."""
        scorer, structure, source = self.model.scorer, self.model.structure, passage.source
        order, says, longest = passage.sentences.numpy(), source.says, int(source.lengths.max())
        extra = 2 * int(source.lengths[order[done]]) * len(says.bases) if scorer.open else 0
        rows, slots = self._rows(scorer, extra, rule), scorer.slots(extra)
        most, kind = min(len(rows.keys), key_table.room(slots)), (structure.native.projective, structure.single_root)
        state = slots, rows, scorer.held, most, scorer.open, kind, rule, self.moves, longest, clock
        done, held, *sums = keyed.sweep(says, source.gold, order, done, *state)
        scorer.hold(held)
        scorer.collect()
        return done, *sums

    def _rows(self, scorer: GrowingArcScorer, extra: int, rule: Rule) -> keyed.Rows:
        """The rows held, with room for so many more."""
        weights, keys, templates = scorer.reserve(extra)
        past = self.solver.past(scorer.table, len(weights)) if rule.averaging else weights[:0]
        return keyed.Rows(keys.numpy().view(np.uint64), templates.numpy(), past.view(-1).numpy())


def walk_of(model: nn.Module) -> type[Walk]:
    if isinstance(model, Parser):
        return KeyWalk if isinstance(model.scorer, GrowingArcScorer) else TreeWalk
    if isinstance(model, Tagger):
        return TagWalk
    raise UserError(f"no way from sentence to sentence is known for a {type(model).__name__}; choose another solver")
