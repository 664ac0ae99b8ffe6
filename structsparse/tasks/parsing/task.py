"""The parsing task: the Lightning module of parsers, and how training stages build, narrow and export a parser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from structsparse.artifacts.quantization import ArtifactOptions
from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import TreebankSplits
from structsparse.features.keys import WORD
from structsparse.losses.structured import StructuredLoss
from structsparse.report.tables import Table
from structsparse.solvers.base import solver_of
from structsparse.tasks.parsing import artifact, report
from structsparse.tasks.parsing.data import ParsingData, prepare
from structsparse.tasks.parsing.features.groups import ArcLayout
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.growing import GrowingArcScorer
from structsparse.tasks.parsing.model import ArcBatch, ArcScorer, Parser
from structsparse.tasks.parsing.predictor import DependencyParser
from structsparse.tasks.parsing.relations import Labelling
from structsparse.tasks.parsing.report import TABLE
from structsparse.tasks.parsing.scores import TreeScore
from structsparse.training.module import TaskModule
from structsparse.training.search.screening import Screen
from structsparse.training.stage import Stage, StageResult, TermPenalties
from structsparse.training.task import Task
from structsparse.training.terms import borne, place
from structsparse.weights.batch import Sizes
from structsparse.weights.notes import notes_of


class Parsing(TaskModule):
    """The Lightning module of the parsing task: trains a parser under a structured loss and scores dev and test."""

    def __init__(
        self,
        parser: Parser,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        score: Callable[[], TreeScore],
        penalised: Sequence[str],
        final_lr: float = 1.0,
        fingerprint: str = "",
    ) -> None:
        super().__init__(loss, optimizer, score, penalised, final_lr, fingerprint)
        self.parser = parser
        self.labelling: Labelling | None = None  # the relation classifier, trained after the parser

    @property
    def linear(self) -> bool:
        """Parsing task: whether the scores are linear in the parameters, and all weights are in memory."""
        return self.parser.linear and not isinstance(self.parser.scorer, GrowingArcScorer)

    @property
    def host_only(self) -> bool:
        """Parsing task: whether the module runs on the CPU only, as a growing table requires."""
        return isinstance(self.parser.scorer, GrowingArcScorer)

    def step(self, batch: ArcBatch) -> Tensor:
        """Parsing task: the sum of the losses of a batch, divided by the number of sentences in the training step."""
        losses = self.loss(self.parser(batch), batch.gold, batch.lengths)  # [batch]: the loss of each sentence
        return losses.sum() / batch.items

    def training_step(self, batch, batch_idx: int) -> Tensor:
        """Parsing task: train on a batch or, with an online solver, sweep over the sentences of a passage."""
        if not isinstance(batch, ArcBatch):
            return self.optimizers(use_pl_optimizer=False).sweep(self.parser, self.loss, batch)
        return super().training_step(batch, batch_idx)

    def predict_step(self, batch: ArcBatch, batch_idx: int = 0) -> Tensor:
        """Parsing task: predict the best head of each word (int64 tensor [batch, words of the longest sentence])."""
        return self.parser.structure.best(self.parser(batch), batch.lengths)

    def count(self, batch: ArcBatch, score: TreeScore) -> None:
        """Parsing task: add the gold and predicted heads and relations of a batch to a score."""
        heads, gold = self.predict_step(batch), batch.gold
        inside = torch.arange(gold.shape[1], device=gold.device) < batch.lengths[:, None]
        offsets = np.concatenate([[0], np.cumsum(batch.lengths.cpu().numpy())])
        gold, heads, marks = (tensor.cpu().numpy() for tensor in (gold[inside], heads[inside], batch.punctuation))
        relations = ()
        if self.labelling is not None:
            relations = self.labelling.codes(batch.part, batch.sentences.cpu().numpy(), heads)
        score.add(gold, heads, offsets, marks, *relations)


@dataclass(frozen=True)
class ParsingTask(Task):
    """The parsing task: predict the head of every word and, with `labels`, the relation to the head."""

    projective: bool = False  # whether predicted trees must have no crossing arcs
    open: bool = True  # whether the next stage keeps features with weight zero if the penalty kept their template
    single_root: bool = False  # whether exactly one word of a predicted tree must have the root as head
    labels: bool = True  # whether a relation classifier is trained too, on gold arcs
    name: str = "parsing"
    layout = ArcLayout
    models = (ArcScorer, GrowingArcScorer)
    losses = (StructuredLoss,)
    keyed = True

    def prepare(self, corpus: TreebankSplits, features: Mapping, filter: Callable, cache: int) -> ParsingData:
        """Parsing task: the data of a parser from a treebank and the options of features."""
        options = {"projective": self.projective, "single_root": self.single_root, "open": self.open}
        return prepare(corpus, features, filter, cache, labels=self.labels, **options)

    def build(self, stage: Stage, data: ParsingData) -> tuple[Parsing, TermPenalties]:
        """Parsing task: the Lightning module of a parser for a stage, and the penalties on its parameters."""
        parser = _parser(stage, data)
        growing = isinstance(parser.scorer, GrowingArcScorer)
        parameters = {f"parser.{name}": p for name, p in parser.named_parameters()}
        grouped = any(term.groups is not None for term in stage.terms)
        layout = None if not grouped else data.counted_layout if growing else data.layout
        terms = place(stage.terms, parameters, layout, {})
        names = [name for _, penalties in terms for name in penalties]
        loss = stage.loss(parser.structure)
        identity = stage.fingerprint(*_identity(data, growing))
        module = Parsing(parser, loss, stage.optimizer, data.score, names, stage.final_lr, identity)
        if isinstance(parser.scorer, ArcScorer):
            curvature = np.empty(len(data.index), np.float32)
            np.divide(data.arrays["train"].bags.counts(len(curvature)), data.items, out=curvature, casting="unsafe")
            notes_of(parser.scorer.table).curvature = torch.from_numpy(curvature)[:, None]
        return module, terms

    def validate(self, stage: Stage, data: ParsingData, optimizer: torch.optim.Optimizer) -> None:
        """Parsing task: refuse options of a stage that do not fit a parser, before training."""
        with torch.device("meta"):
            parser = Parser(stage.scorer(Sizes(0, 1, 0, ())), data.projective, data.single_root)
        _check_fit(optimizer, parser, stage.loss(parser.structure))
        borne(stage.terms, [f"parser.{name}" for name, _ in parser.named_parameters()])

    def check_solver(self, stage: Stage, module: Parsing, optimizer: torch.optim.Optimizer, support: Mapping) -> None:
        """Parsing task: refuse a solver that cannot train the parser of this module."""
        _check_fit(optimizer, module.parser, module.loss)

    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[ParsingData, dict[str, Tensor]]:
        """Parsing task: the data for the next stage, without dropped arc features, and an empty dictionary.

        Other tasks return masks of nonzero weights in the dictionary. A parser needs none, because each feature has one
        weight. Features with weight zero are dropped, except with the option `open`: then features are kept if the
        penalty kept their group. A growing table must have templates as groups for this."""
        if TABLE not in support:
            return before.data, {}
        data, scorer, kept = before.data, before.module.parser.scorer, _kept(before, support[TABLE])
        if not isinstance(scorer, GrowingArcScorer):
            return data.keep(kept.numpy()), {}
        scorer.compact()
        if not data.open or data.closed or not _selects_templates(before):
            living = kept & (scorer.table.detach().view(-1) != 0)
            return data.with_features(_index(data, scorer, _order(scorer, living))), {}
        return data.with_templates(_living_templates(data, scorer, kept)), {}

    @torch.no_grad()
    def inherit(self, module: Parsing, before: StageResult, support: dict[str, Tensor]) -> None:
        """Parsing task: copy the weights of the previous stage into a parser, without dropped features."""
        old, scorer, support = before.module.parser.scorer, module.parser.scorer, before.survivors()
        growing = isinstance(scorer, GrowingArcScorer)
        if growing != isinstance(old, GrowingArcScorer):
            raise UserError("warm=true: model=arcs and arcs_growing cannot start from each other; set it to false")
        kept = _kept(before, support[TABLE]) if TABLE in support else torch.ones(len(old.table), dtype=torch.bool)
        if not growing:
            scorer.table.copy_(old.table[kept] if len(old.table) != len(scorer.table) else old.table)
            return
        _copy_rows(scorer, old, kept & (old.table.detach().view(-1) != 0))

    def alive(self, result: StageResult) -> bool:
        """Parsing task: whether every penalised parameter has a weight that survived the penalty."""
        return all(bool(mask.any()) for mask in result.survivors().values())

    def screen(self, result: StageResult) -> Screen | None:
        """Parsing task: the groups of arc features for screening; None for a growing table, which has no fixed rows."""
        scorer = result.module.parser.scorer
        if TABLE not in result.penalties or isinstance(scorer, GrowingArcScorer):
            return None
        rows = len(scorer.table)
        return Screen.of(TABLE, result.penalties[TABLE], rows, torch.arange(rows))

    def finalize(self, result: StageResult) -> StageResult:
        """Parsing task: complete the result of training: make the weight table plain, and train a relation classifier.

        A growing table is replaced by a plain table of the nonzero weights. The classifier is trained only if the data
        have templates for it, and if the module has no classifier yet."""
        result = self._grown(result) if isinstance(result.module.parser.scorer, GrowingArcScorer) else result
        data, module = result.data, result.module
        if data.label_templates and module.labelling is None:
            module.labelling = Labelling.fit(data.splits.parts, data.label_templates, data.min_count)
        return result

    def _grown(self, result: StageResult) -> StageResult:
        """Parsing task: the result of training, with a plain table of nonzero weights in place of the growing table."""
        module, scorer = result.module, result.module.parser.scorer
        scorer.compact()
        order = _order(scorer, scorer.table.detach().view(-1) != 0)
        data = result.data.with_features(_index(result.data, scorer, order))
        parser = Parser(ArcScorer(data.sizes), data.projective, data.single_root)
        with torch.no_grad():
            parser.scorer.table.copy_(scorer.table[torch.from_numpy(order)])
        settings = module.make_optimizer, module.make_score, module.penalised, module.final_lr, module.fingerprint
        return StageResult(data, Parsing(parser, module.loss, *settings), {}, result.figures)

    def rounded(self, result: StageResult, small: ArtifactOptions) -> StageResult:
        """Parsing task: the result of training as a small artifact stores it: rounded weights, short feature keys."""
        result = super().rounded(result, small)
        module, data = result.module, result.data
        if module.labelling is not None:
            relations = module.labelling.model.small(small, data.splits.parts["train"])
            module.labelling = replace(module.labelling, model=relations)
        if small.guard is None or artifact.unfit(module.parser) is not None:
            return result
        alive = module.parser.scorer.table.detach().cpu().numpy()[:, 0] != 0
        return replace(result, data=data.shortened(small.guard, alive))

    def sparsity(self, data: ParsingData, first: StageResult, last: StageResult) -> dict[str, object]:
        """Parsing task: counts of features, weights and groups of a parser before and after selection."""
        return report.sparsity(data, first, last)

    def write_report(
        self, folder: Path, data: ParsingData, results: Sequence[StageResult], last: StageResult
    ) -> Table | None:
        """Parsing task: write the report on a trained parser; return the table of groups."""
        return report.write_report(folder, data, results, last)

    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Parsing task: write the artifact of a parser; return its size in bytes, or None if it cannot be stored."""
        module, data = result.module, result.data
        if (reason := artifact.unfit(module.parser)) is not None:
            console.print(f"no artifact: {reason}")
            return None
        relations = None if module.labelling is None else module.labelling.model
        return artifact.save(
            folder, DependencyParser(data.short or data.index, module.parser, relations, data.splits.rule)
        )


def _parser(stage: Stage, data: ParsingData) -> Parser:
    """Parsing task: the parser of a training stage, with all weights zero."""
    kind = stage.scorer.func if isinstance(stage.scorer, partial) else stage.scorer
    if kind is not GrowingArcScorer:
        return Parser(stage.scorer(data.sizes), data.projective, data.single_root)
    if data.bits < WORD:
        raise UserError(f"features.bits={data.bits}: model=arcs_growing needs whole keys; take model=arcs")
    scorer = stage.scorer()
    if data.closed:  # only features of the index may get a row
        index = data.index
        templates = np.repeat(np.arange(len(index.templates)), np.diff(index.offsets))
        keys = torch.from_numpy(index.keys.view(np.int64).copy())
        scorer.set_rows(torch.zeros(len(index), 1), keys, torch.from_numpy(templates))
        scorer.open = False
    elif data.min_count > 1:
        raise UserError(
            f"features.min_count={data.min_count}: model=arcs_growing does not count features; take model=arcs, or 1"
        )
    return Parser(scorer, data.projective, data.single_root)


def _check_fit(optimizer: torch.optim.Optimizer, parser: Parser, loss: nn.Module) -> None:
    """Parsing task: raise an error if a solver cannot train this parser under this loss."""
    solver = solver_of(optimizer)
    if solver.needs_sentences:
        if parser.scorer.table.device.type != "meta":
            solver.check(parser, loss)
    elif isinstance(parser.scorer, GrowingArcScorer):
        raise UserError("model=arcs_growing needs solver=online_perceptron or online_mira; or take model=arcs")


def _identity(data: ParsingData, growing: bool) -> tuple:
    """Parsing task: the values that identify the data of a parser in the fingerprint of a stage.

    These are template names, tree constraints and feature keys. For a growing table, hashed attributes and gold heads
    replace the keys."""
    names, train = [template.name for template in data.templates], data.arrays["train"]
    if growing and not data.closed:
        atoms = train.template_atoms
        return names, data.projective, data.single_root, atoms.values, atoms.starts, train.gold
    return names, data.projective, data.single_root, np.ascontiguousarray(data.index.keys)


# --- rows of growing weight tables


def _copy_rows(scorer: GrowingArcScorer, old: GrowingArcScorer, living: Tensor) -> None:
    """Parsing task: copy the rows marked in the bool array `living` from one growing table to another."""
    order = _order(old, living)
    weights, keys = old.table.detach()[torch.from_numpy(order)], old.keys[torch.from_numpy(order)]
    if scorer.open:
        _, numbers = np.unique(old.templates.numpy()[order], return_inverse=True)  # template indices without gaps
        scorer.set_rows(weights, keys, torch.from_numpy(numbers))
    else:
        scorer.table.copy_(weights)
        scorer.stale()


def _selects_templates(result: StageResult) -> bool:
    """Parsing task: whether the penalty selects whole templates, where either all or no rows of a template survive."""
    penalty, weights = result.penalties[TABLE], result.module.parser.scorer.table.detach()
    if penalty.groups is None:
        return False
    alive = penalty.groups.expand(penalty.groups.alive(weights), fill=True)
    return bool((penalty.survivors(weights) == alive).all())


def _kept(before: StageResult, support: Tensor) -> Tensor:
    """Parsing task: the mask of the rows that the next stage keeps (bool tensor [rows]).

    With the option `open`, these are the rows marked in `support`, whose groups survived the penalty. Without it, these
    are the rows in `support` with nonzero weights."""
    kept = support.view(-1).cpu()
    return kept if before.data.open else kept & (before.module.parser.scorer.table.detach().view(-1).cpu() != 0)


def _living_templates(data: ParsingData, scorer: GrowingArcScorer, kept: Tensor) -> np.ndarray:
    """Parsing task: the mask of the arc templates with a nonzero weight in a row that `kept` marks (bool array)."""
    living = kept & (scorer.table.detach().view(-1) != 0)
    return np.bincount(scorer.templates[living].numpy(), minlength=len(data.templates)) > 0


def _order(scorer: GrowingArcScorer, kept: Tensor) -> np.ndarray:
    """Parsing task: the indices of the table rows that `kept` marks, sorted by template and key (int64 array)."""
    rows = kept.nonzero().flatten().numpy()
    templates = scorer.templates.numpy()[rows]
    most = int(templates.max(initial=0))
    # sort the rows by template; a small dtype is fast, because numpy uses radix sort for at most 16 bits
    rows = rows[np.argsort(templates.astype(np.min_scalar_type(most)), kind="stable")]
    keys, begin = scorer.keys.numpy().view(np.uint64), 0
    for count in np.bincount(templates).tolist():
        block = rows[begin : begin + count]
        block[:] = block[np.argsort(keys[block])]
        begin += count
    return rows


def _index(data: ParsingData, scorer: GrowingArcScorer, order: np.ndarray) -> ArcIndex:
    """Parsing task: the feature index of the growing table's rows in `order`, without templates that have no row."""
    counts = np.bincount(scorer.templates.numpy()[order], minlength=len(data.templates))
    templates = tuple(t for t, count in zip(data.templates, counts, strict=True) if count)
    offsets = np.concatenate([[0], np.cumsum(counts[counts > 0])])
    return ArcIndex(
        templates, offsets, scorer.keys.numpy().view(np.uint64)[order], np.arange(len(order), dtype=np.int32)
    )
