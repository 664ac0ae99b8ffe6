"""The tagging task: the Lightning module of taggers, and the steps of a training stage for taggers."""

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
from structsparse.corpora.splits import SentenceSplits
from structsparse.features.layout import TemplateLayout
from structsparse.features.word_lists import WordLists, brown_clusters
from structsparse.losses.structured import StructuredLoss
from structsparse.report.tables import Table
from structsparse.solvers.base import solver_of
from structsparse.tasks.tagging import artifact, report
from structsparse.tasks.tagging.data import EDGES, TaggingData, prepare, table_name
from structsparse.tasks.tagging.features.columns import suited
from structsparse.tasks.tagging.growing import GrowingScorer
from structsparse.tasks.tagging.model import DenseScorer, RecurrentScorer, SparseScorer, SumScorer, Tagger
from structsparse.tasks.tagging.scores import SpanScore
from structsparse.training.batches import Passage
from structsparse.training.module import TaskModule
from structsparse.training.scores import AccuracyScore
from structsparse.training.search.screening import Screen
from structsparse.training.stage import Stage, StageResult, TermPenalties
from structsparse.training.task import Task
from structsparse.training.terms import borne, place
from structsparse.weights.batch import TokenBatch
from structsparse.weights.notes import notes_of
from structsparse.weights.observed_pairs import Pairs, PairScorer, on_rows, pairs_of, rows_of

AUTO = "auto"  # value of task.scheme: dev chooses the scheme
SCHEMES_OF_DEV = "iob2", "iobes"  # the schemes among which dev can choose; the first is the default


class Tagging(TaskModule):
    """The Lightning module of the tagging task: trains a tagger and scores its predictions."""

    def __init__(
        self,
        tagger: Tagger,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        score: Callable[[], SpanScore | AccuracyScore],
        penalised: Sequence[str],
        final_lr: float = 1.0,
        fingerprint: str = "",
    ) -> None:
        super().__init__(loss, optimizer, score, penalised, final_lr, fingerprint)
        self.tagger, self.chain = tagger, tagger.structure

    @property
    def linear(self) -> bool:
        """Tagging task: whether the scores are linear in the parameters; false for growing tables."""
        return self.tagger.linear and not isinstance(self.tagger.scorer, GrowingScorer)

    def step(self, batch: TokenBatch) -> Tensor:
        """Tagging task: the summed loss of a batch, divided by the number of sentences in the optimizer step."""
        return self.losses(batch).sum() / batch.items

    def losses(self, batch: TokenBatch) -> Tensor:
        """Tagging task: the loss of each sentence of a batch."""
        return self.loss(self.tagger(batch), batch.gold, batch.lengths)

    def training_step(self, batch: TokenBatch | Passage, batch_idx: int) -> Tensor:
        """Tagging task: train on a batch or, with an online solver, on a block of sentences (passage)."""
        if isinstance(batch, Passage):
            return self.optimizers(use_pl_optimizer=False).sweep(self.tagger, self.loss, batch)
        return super().training_step(batch, batch_idx)

    def predict_step(self, batch: TokenBatch, batch_idx: int = 0) -> Tensor:
        """Tagging task: predict the label index of each token, from the best label sequence of each sentence."""
        labels = self.chain.best(self.tagger(batch), batch.lengths)  # [batch, time], with padding
        return labels.view(-1)[batch.places]

    def count(self, batch: TokenBatch, score: SpanScore | AccuracyScore) -> None:
        """Tagging task: add the gold and predicted labels of a batch of sentences to a score."""
        score.add(*self._labels(batch))

    def count_items(self, batch: TokenBatch) -> np.ndarray:
        """Tagging task: the numbers of right, gold and predicted spans of each sentence: int64 [sentences, 3].

        If tags are not spans, the numbers are those of right tags, gold tags and predicted tags."""
        return self.make_score().by_sentence(*self._labels(batch))

    def _labels(self, batch: TokenBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tagging task: the gold and predicted labels of the tokens of a batch, and the offsets of its sentences."""
        offsets = np.r_[0, np.cumsum(batch.lengths.cpu().numpy())]
        gold = batch.gold.view(-1)[batch.places]
        return gold.cpu().numpy(), self.predict_step(batch).cpu().numpy(), offsets


@dataclass(frozen=True)
class TaggingTask(Task):
    """The tagging task (sequence labelling): predict a label for every token of a sentence."""

    tag: str = "tag"  # the name of the column to predict
    scheme: str | None = None  # how tags encode spans in training, or auto (see `variants`); None: tags are not spans
    name: str = "tagging"
    layout = TemplateLayout
    models = (SparseScorer, PairScorer, GrowingScorer, DenseScorer, RecurrentScorer, SumScorer)
    losses = (StructuredLoss,)
    keyed = True

    def prepare(self, corpus: SentenceSplits, features: Mapping, filter: Callable, cache: int) -> TaggingData:
        """Tagging task: prepare the data of a tagger from a corpus of tagged sentences and the feature options."""
        if not isinstance(corpus, SentenceSplits) or "templates" not in features:
            raise UserError("a tagger needs labelled tokens and templates; these data or features are for other tasks")
        made = partial(brown_clusters, corpus.train, features["cluster_text"], features["cluster_classes"], cache)
        lists = WordLists.read(features["lexicons"], features["clusters"], features["lexicons_lower"], made)
        lines, notes = suited(features, corpus.train, self.tag, lists.templates)
        corpus = replace(corpus, **{part: lists.added(sentences) for part, sentences in corpus.parts.items()})
        data = prepare(
            corpus, lines, tag=self.tag, scheme=self.first_scheme, min_count=features["min_count"],
            dense=features["dense"], codes=features["codes"], choose=filter, edges=features["edges"], cache=cache,
        )  # fmt: skip
        return replace(data, notes=(*notes, *data.notes), lists=lists)

    @property
    def first_scheme(self) -> str | None:
        """Tagging task: how tags encode spans in the prepared data; None: tags are not spans."""
        return SCHEMES_OF_DEV[0] if self.scheme == AUTO else self.scheme

    def variants(self, data: TaggingData) -> dict[str, TaggingData]:
        """Tagging task: under `task.scheme=auto`, the data in each scheme of span tags among which dev can choose."""
        return {scheme: data.in_scheme(scheme) for scheme in SCHEMES_OF_DEV} if self.scheme == AUTO else {}

    def build(self, stage: Stage, data: TaggingData) -> tuple[Tagging, TermPenalties]:
        """Tagging task: build, for a training stage, the Lightning module of a tagger and its penalties."""
        tagger = Tagger(stage.scorer(data.sizes), data.sizes.labels, data.edge_scorer())
        parameters = {f"tagger.{name}": p for name, p in tagger.named_parameters()}
        pairs = pairs_of(tagger.scorer)
        layout = TemplateLayout(data.index.names, data.index.offsets, data.labels, data.reduced, pairs)
        of_edges = {} if data.edges is None else {EDGES: data.edges.layout(data.labels)}
        terms = place(stage.terms, parameters, layout, of_edges)
        names = [name for _, penalties in terms for name in penalties]
        loss, identity = stage.loss(tagger.structure), stage.fingerprint(*_identity(data))
        module = Tagging(tagger, loss, stage.optimizer, data.score, names, stage.final_lr, identity)
        for name, curvature in curvatures(data, pairs).items():
            if name in parameters:
                notes_of(parameters[name]).curvature = curvature
        return module, terms

    def validate(self, stage: Stage, data: TaggingData, optimizer: torch.optim.Optimizer) -> None:
        """Tagging task: raise an error before training if options of a stage do not fit the tagger."""
        tagger = Tagger(stage.scorer(data.sizes), data.sizes.labels, data.edge_scorer())
        borne(stage.terms, [f"tagger.{name}" for name, _ in tagger.named_parameters()])
        _check_fit(optimizer, tagger, stage.loss(tagger.structure))

    def check_solver(self, stage: Stage, module: Tagging, optimizer: torch.optim.Optimizer, support: Mapping) -> None:
        """Tagging task: raise an error if a solver cannot train the tagger in this module."""
        _check_fit(optimizer, module.tagger, module.loss)
        if isinstance(module.tagger.scorer, GrowingScorer) and table_name(support):
            raise UserError(
                f"stage {stage.name}: model=growing cannot keep entries of living rows at zero; take model=sparse"
            )

    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[TaggingData, dict[str, Tensor]]:
        """Tagging task: the data and the weight masks for the next stage.

        `support` has, for each parameter name, a mask of the weights that may be nonzero in the next stage. The data
        keep only features with such weights. The returned masks are those in `support`, restricted to the remaining
        features. Masks that are true everywhere are left out."""
        rows, table = {}, table_name(support)
        for name in {table, EDGES} & {*support}:
            scorer = _owner(before.module, name)
            rows[name] = rows_of(scorer, support[name])
            support = {**support, name: on_rows(scorer, support[name], rows[name])}
        living = (rows[name].cpu().numpy() if name in rows else None for name in (table, EDGES))
        return before.data.keep(*living), {name: mask for name, mask in support.items() if not mask.all()}

    @torch.no_grad()
    def inherit(self, module: Tagging, before: StageResult, support: dict[str, Tensor]) -> None:
        """Tagging task: initialise a tagger with the weights from the previous stage, without dropped features."""
        old = dict(before.module.named_parameters())
        survivors = before.survivors()
        for name, parameter in module.named_parameters():
            value, scorer = old[name], _owner(before.module, name)
            if notes_of(value).grows is not None:
                value = notes_of(value).grows.dense(survivors[name].any(dim=1))
            elif isinstance(scorer, PairScorer) and parameter.dim() == 2:
                value = scorer.dense()[rows_of(scorer, survivors[name])]
            elif value.shape != parameter.shape:
                value = on_rows(scorer, value, rows_of(scorer, survivors[name]))
            if notes_of(parameter).grows is not None:
                notes_of(parameter).grows.fill(value)
                continue
            if value.shape != parameter.shape:
                raise UserError(
                    "warm=true: this model cannot start from the weights of the stage before; set it to false"
                )
            parameter.copy_(value)
            if name in support:
                parameter.mul_(support[name])

    def alive(self, result: StageResult) -> bool:
        """Tagging task: whether the penalty keeps any weight of a feature table.

        If no feature table is penalised, this is whether the penalty keeps any weight at all."""
        support = result.survivors()
        tables = [name for name in (table_name(support), EDGES) if name in support]
        return any(mask.any() for name, mask in support.items() if name in tables or not tables)

    def screen(self, result: StageResult) -> Screen | None:
        """Tagging task: an object for screening features in a path search; None if no feature table is penalised."""
        table = table_name(result.penalties)
        if table is None:
            return None
        rows, pairs = len(result.data.index), pairs_of(result.module.tagger.scorer)
        row_of = torch.arange(rows) if pairs is None else torch.from_numpy(pairs.rows).long()
        return Screen.of(table, result.penalties[table], rows, row_of)

    def finalize(self, result: StageResult) -> StageResult:
        """Tagging task: the result of training, with a plain table of the nonzero rows in place of a growing table."""
        module, scorer = result.module, result.module.tagger.scorer
        if not isinstance(scorer, GrowingScorer):
            return result
        rows = torch.zeros(scorer.rows, dtype=torch.bool)
        rows[scorer.features.cpu()[(scorer.table != 0).any(dim=1).cpu()]] = True
        data = result.data.keep(rows.numpy())
        tagger = Tagger(SparseScorer(data.sizes), data.sizes.labels).to(scorer.table.dtype)
        with torch.no_grad():
            tagger.scorer.table.copy_(scorer.dense(rows.to(scorer.features.device)))
            for name in ("transitions", "start", "end"):
                getattr(tagger, name).copy_(getattr(module.tagger, name))
        settings = module.make_optimizer, module.make_score, module.penalised, module.final_lr, module.fingerprint
        return StageResult(data, Tagging(tagger, module.loss, *settings), {}, result.figures)

    def rounded(self, result: StageResult, small: ArtifactOptions) -> StageResult:
        """Tagging task: the training result in the form of a small artifact: rounded weights, shorter feature keys."""
        result = super().rounded(result, small)
        if small.guard is None or artifact.unfit(result.module.tagger) is not None:
            return result
        data = result.data
        alive = artifact.living(result.module.tagger, len(data.index))
        return replace(result, data=data.shortened(small.guard, *alive))

    def sparsity(self, data: TaggingData, first: StageResult, last: StageResult) -> dict[str, object]:
        """Tagging task: counts of features, weights and groups of a tagger before and after selection."""
        return report.sparsity(data, first, last)

    def write_report(
        self, folder: Path, data: TaggingData, results: Sequence[StageResult], last: StageResult
    ) -> Table | None:
        """Tagging task: write the report on a trained tagger; return the table of groups."""
        return report.write_report(folder, data, results, last)

    def details(self, test: Mapping[str, object]) -> Table:
        """Tagging task: a table of the test scores of each span type or, if tags are not spans, of each tag."""
        return report.type_table(test)

    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Tagging task: write the artifact of a tagger; return its size in bytes, or None if this is impossible."""
        reason = artifact.unfit(result.module.tagger)
        if reason is not None:
            console.print(f"no artifact: {reason}")
            return None
        return artifact.save(folder, result.module.tagger, result.data)


def curvatures(data: TaggingData, pairs: Pairs | None) -> dict[str, Tensor]:
    """Tagging task: how often each weight is active in a training sentence on average, by parameter name.

    Some solvers use these averages as estimates of the second derivatives of the loss."""
    train = data.arrays["train"]
    items = len(train)
    rows = (np.bincount(train.bags.ids, minlength=len(data.index)) / items).clip(1 / items)  # mean count per sentence
    table = rows[:, None] if pairs is None else rows[pairs.rows]
    labels, (first, last) = len(data.labels), (train.offsets[:-1], train.offsets[1:] - 1)
    inner = np.ones(len(train.gold), bool)
    inner[first] = False
    edges = np.bincount(train.gold[:-1][inner[1:]] * labels + train.gold[1:][inner[1:]], minlength=labels**2)
    start, end = (np.bincount(train.gold[tokens], minlength=labels) for tokens in (first, last))
    shared = {"transitions": edges.reshape(labels, labels), "start": start, "end": end}
    # a label or label pair that does not occur in training gets the mean count over all labels or pairs, at least 1
    expected = {name: np.where(c > 0, c, max(1.0, c.mean())) / items for name, c in shared.items()}
    counts = {"scorer.table": table, **expected}
    if data.edges is not None:
        counts["edges.table"] = (data.edges.counts / items).clip(1 / items)[data.edges.pairs.rows]
    return {f"tagger.{name}": torch.as_tensor(c, dtype=torch.float32) for name, c in counts.items()}


def _check_fit(optimizer: torch.optim.Optimizer, tagger: Tagger, loss: nn.Module) -> None:
    """Tagging task: raise an error if a solver cannot train this tagger under this loss."""
    solver = solver_of(optimizer)
    if solver.needs_sentences:
        solver.check(tagger, loss)
    elif isinstance(tagger.scorer, GrowingScorer):
        raise UserError("model=growing needs solver=online_perceptron or online_mira; or take model=sparse")


def _owner(module: Tagging, name: str) -> nn.Module:
    """Tagging task: the submodule of a tagger that contains the parameter with this name."""
    return module.get_submodule(name.rpartition(".")[0])


def _identity(data: TaggingData) -> tuple:
    """Tagging task: the values that identify the data of a tagger in the fingerprint of a training stage."""
    edges = [] if data.edges is None else data.edges.index.names
    return data.index.names, edges, data.labels, np.ascontiguousarray(data.index.keys)
