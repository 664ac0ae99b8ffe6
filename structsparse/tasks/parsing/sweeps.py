"""Sweeps of a parser: compiled passes by which online solvers update the weights after each parsed sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from structsparse.base.errors import UserError
from structsparse.kernels.solvers import online_trees as trees
from structsparse.kernels.solvers import online_trees_by_keys as keyed
from structsparse.kernels.weights import key_table
from structsparse.solvers.online import Sweeper, UpdateRule
from structsparse.weights.feature_tables import FeatureTable

if TYPE_CHECKING:
    from structsparse.solvers.online import Online


class TreeSweeper(Sweeper):
    """The sweeper of parsers whose weight table has a row for every arc feature."""

    def __init__(self, model, solver: Online) -> None:
        super().__init__(model, solver)
        self.source: object | None = None  # the arc arrays (`ArcArrays`) that the latest sweep read; None before
        self.corpus: trees.ParsedCorpus | None = None  # `source` in the form that the kernel reads
        self.scratch: trees.TreeScratch | None = None  # work memory of the kernel

    def check(self) -> None:
        """Sweep of a parser: raise an error if the parser has no table of arc features."""
        if not isinstance(self.model.scorer, FeatureTable):
            raise UserError(
                f"{self.solver.name} moves tables of features of arcs (model=arcs or arcs_growing), not "
                f"{self.model.scorer}"
            )

    def sweep(self, passage, rule: UpdateRule, clock: int) -> tuple[float, float, int]:
        """Sweep of a parser: update the weights after each sentence of a passage.

        `passage` is an `ArcPassage`. `clock` is the number of sentences trained on before. Returns the sum of losses,
        the sum of step sizes, and the change of the number of nonzero weights."""
        if self.source is not passage.source:
            self._begin(passage.source)
        table, structure = self.model.scorer.table, self.model.structure
        past = self.solver.past(table, len(table)) if rule.averaging else table.detach()[:0]
        weights, projective = (table.detach().view(-1).numpy(), past.view(-1).numpy()), structure.native.projective
        order = passage.sentences.numpy()
        return trees.sweep(self.corpus, order, *weights, projective, structure.single_root, rule, self.scratch, clock)

    def _begin(self, source) -> None:
        """Sweep of a parser: prepare the arrays of a treebank, and the work memory, for the kernel."""
        self.source = source
        bags, longest = source.bags, int(source.lengths.max())
        self.corpus = trees.ParsedCorpus(bags.ids, bags.offsets, source.offsets, source.gold, source.arcs)
        most = 2 * longest * int(np.diff(bags.offsets).max(initial=0))  # maximum for gold plus predicted tree
        counts, amounts = np.zeros(len(self.model.scorer.table), np.int16), np.empty(most, np.int16)
        self.scratch = trees.TreeScratch(counts, np.empty(most, np.int32), amounts, longest)


class GrowingTreeSweeper(Sweeper):
    """The sweeper of parsers with a growing weight table, in which features are looked up by key."""

    def __init__(self, model, solver: Online) -> None:
        super().__init__(model, solver)
        self.source: object | None = None  # the arc arrays (`ArcArrays`) that the latest sweep read; None before
        self.moves: keyed.TreeDifference | None = None  # work memory: gold minus predicted feature counts

    def check(self) -> None:
        """Sweep of a parser with a growing table: raise an error if the weights are not float32."""
        if self.model.scorer.table.dtype != torch.float32:
            raise UserError(
                f"{self.solver.name} moves float32 weights of model=arcs_growing alone (trainer.precision); or take "
                "arcs"
            )

    def sweep(self, passage, rule: UpdateRule, clock: int) -> tuple[float, float, int]:
        """Sweep of a parser with a growing table: update the weights after each sentence of a passage.

        If the table gets full, the sweep goes on with a larger table.

        `passage` is an `ArcPassage`. `clock` is the number of sentences trained on before. Returns the sum of losses,
        the sum of step sizes, and the change of the number of nonzero weights."""
        source = passage.source
        self._release(self.model.scorer)
        if self.source is not source:
            self.source = source
            self.moves = keyed.difference_for(len(source.template_atoms.bases), int(source.lengths.max()))
        done, totals = 0, np.zeros(3)
        while done < len(passage.sentences):
            done, *sums = self._sweep_from(passage, done, rule, clock)
            totals += sums
        return float(totals[0]), float(totals[1]), int(totals[2])

    def _sweep_from(self, passage, done: int, rule: UpdateRule, clock: int) -> tuple:
        """Sweep of a parser over a passage, from the sentence with index `done`, until the hash table is full.

        Returns the count of finished sentences, then the same sums as `sweep`."""
        scorer, structure, source = self.model.scorer, self.model.structure, passage.source
        order, atoms, longest = passage.sentences.numpy(), source.template_atoms, int(source.lengths.max())
        extra = 2 * int(source.lengths[order[done]]) * len(atoms.bases) if scorer.open else 0
        rows, slots = self._rows(extra, rule), scorer.slots(extra)
        most, kind = min(len(rows.keys), key_table.room(slots)), (structure.native.projective, structure.single_root)
        state = slots, rows, scorer.held, most, scorer.open, kind, rule, self.moves, longest, clock
        done, held, *sums = keyed.sweep(atoms, source.gold, order, done, *state)
        scorer.hold(held)
        scorer.collect()
        return done, *sums

    def _rows(self, extra: int, rule: UpdateRule) -> keyed.KeyedRows:
        """Sweep of a parser: the keys and templates of the rows in memory, with room for `extra` more rows."""
        scorer = self.model.scorer
        weights, keys, templates = scorer.reserve(extra)
        past = self.solver.past(scorer.table, len(weights)) if rule.averaging else weights[:0]
        return keyed.KeyedRows(keys.numpy().view(np.uint64), templates.numpy(), past.view(-1).numpy())
