"""The task of word vectors: the Lightning module, and how training stages build and report it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from scipy.sparse import csr_array
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.base.partials import callee
from structsparse.corpora.known.running_text import RunningText
from structsparse.corpora.known.texts import TextSplits
from structsparse.features import filters
from structsparse.losses.reconstruction import PMIReconstruction
from structsparse.penalties import Penalty
from structsparse.report.tables import Table
from structsparse.solvers.base import solver_of
from structsparse.solvers.columns import ColumnAdamW
from structsparse.solvers.online_dictionary import OnlineDictionary, correlations
from structsparse.solvers.sampled_entries import SampledEntries
from structsparse.solvers.sgd import RowAdagrad, RowSGD
from structsparse.tasks.embeddings import artifact, report
from structsparse.tasks.embeddings.data import TRAIN, WHOLE, WordBatch, WordData, checked_options, prepare
from structsparse.tasks.embeddings.groups import (
    DimensionLayout,
    level_sizes,
    random_groups_of_dimensions,
    trees_of_dimensions,
)
from structsparse.tasks.embeddings.model import SparseCodes
from structsparse.tasks.embeddings.predictor import WordVectors
from structsparse.tasks.embeddings.scores import VectorScore
from structsparse.tasks.embeddings.sentiment import sentiment_answers
from structsparse.tasks.embeddings.similarity import accuracy, analogies, similarity, unit_rows
from structsparse.training.module import TaskModule
from structsparse.training.stage import Stage, StageResult, TermPenalties
from structsparse.training.task import Task
from structsparse.training.terms import borne, place

DIMENSIONS = 52  # dimensions of word vectors if neither the model nor groups say how many
OWN_STEPS = (OnlineDictionary, SampledEntries)
BY_GRADIENT = (ColumnAdamW, RowSGD, RowAdagrad, torch.optim.SGD, torch.optim.Adam)  # AdamW is an Adam
DENSE = 1 << 26  # numbers in the largest dense table of codes, unless model.sparse says more
TABLE = "model.table"  # name of the parameter with the codes, the only one that is penalised


def codes(
    data: WordData,
    dimensions: int | None,
    biases: bool = False,
    sparse: bool | None = None,
    of_groups: int | None = None,
) -> SparseCodes:
    """Task of word vectors: make the model; without a number of dimensions it has those of the groups.

    `of_groups` is the number of dimensions of the groups, None without groups. If `sparse` is None, codes are kept as
    sparse columns where a dense table would have more than `DENSE` numbers."""
    count = next(number for number in (dimensions, of_groups, DIMENSIONS) if number is not None)
    if type(count) is not int or count < 1:
        raise UserError(f"model.dimensions is {count}, expected a number of at least 1")
    sparse = count * data.items > DENSE if sparse is None else sparse
    return SparseCodes(count, data.items, data.matrix.shape[1], biases, sparse)


class VectorModule(TaskModule):
    """The Lightning module of word vectors, which trains and scores `SparseCodes`."""

    def __init__(
        self,
        model: SparseCodes,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        data: WordData,
        final_lr: float = 1.0,
        fingerprint: str = "",
    ) -> None:
        super().__init__(loss, optimizer, lambda: VectorScore(figure_names(data)), (TABLE,), final_lr, fingerprint)
        self.model = model

    @property
    def certified(self) -> bool:
        """Module of word vectors: no gradients are computed for sparse columns of codes, nor at zero for biases.

        At zero, all biases would be fitted first."""
        return self.model.codes is None and self.model.word_bias is None

    def penalty_value(self, penalties: Mapping[str, Penalty]) -> float:
        """Module of word vectors: the penalty of all codes, added up over parts if they are sparse columns."""
        if self.model.codes is None:
            return super().penalty_value(penalties)
        parts = torch.arange(len(self.model.codes.starts) - 1).split(WHOLE)
        return sum(float(penalty.value(self.model(words))) for penalty in penalties.values() for words in parts)

    @property
    def linear(self) -> bool:
        """Module of word vectors: whether reconstructions are linear in all parameters; they are products of two."""
        return False

    def configure_optimizers(self):
        """Module of word vectors: the optimizer; after a step by gradients, the norms of atoms are limited to 1."""
        configured = super().configure_optimizers()
        if solver_of(configured["optimizer"]).slopes:
            configured["optimizer"].register_step_post_hook(lambda *_: self.model.constrain_())
        return configured

    def training_step(self, batch: WordBatch, batch_idx: int) -> Tensor:
        """Module of word vectors: the loss of a batch, from which a solver without gradients learns at once."""
        solver = solver_of(self.optimizers(use_pl_optimizer=False))
        return self.step(batch) if solver.slopes else solver.sweep(self.model, self.loss, batch)

    def step(self, batch: WordBatch) -> Tensor:
        """Module of word vectors: the mean loss over the words of a batch."""
        return self.model.loss(self.loss, batch.words, batch.rows) / batch.items

    def count(self, batch: WordBatch, score: VectorScore) -> None:
        """Module of word vectors: evaluate all vectors on the sets of words of a part, dev or test."""
        data = batch.source
        figures = {"explained": explained(self.model, data)}
        unit, known = unit_rows(self.model.vectors()), {word: k for k, word in enumerate(data.words)}
        sets = data.pairs.get(batch.part, [])
        for pairs in sets:
            figures[f"similarity_{pairs.name}"] = float(np.nan_to_num(similarity(unit, known, pairs).spearman))
        if sets:
            figures["similarity"] = sum(figures[f"similarity_{pairs.name}"] for pairs in sets) / len(sets)
        if batch.part == "test" and data.analogies is not None:
            figures |= {f"analogy_{kind}": s.accuracy for kind, s in analogies(unit, known, data.analogies).items()}
        if batch.part == "test" and data.sentiment is not None:
            figures["sentiment"] = accuracy(sentiment_answers(unit, known, data.sentiment))
        score.add(figures)


def figure_names(data: WordData) -> list[str]:
    """Task of word vectors: the names of the figures that a score may have."""
    sets = [f"similarity_{pairs.name}" for part in data.pairs.values() for pairs in part]
    return ["explained", "similarity", *sets, "analogy_syntactic", "analogy_semantic", "sentiment"]


@torch.no_grad()
def explained(model: SparseCodes, data: WordData) -> float:
    """Task of word vectors: the share of the squares of all associations that the model reconstructs."""
    _, dictionary = model.factors(torch.arange(0, device=model.table.device))
    dictionary, gained = dictionary.cpu(), 0.0
    gram = dictionary @ dictionary.T
    for batch in data.whole(TRAIN):
        table, _ = model.factors(batch.words.to(model.table.device))
        table, pull = table.cpu(), correlations(data.matrix[batch.words.numpy()], dictionary)
        gained += float((2 * pull * table - table * (gram @ table)).sum(dtype=torch.float64))
    return gained / float(np.square(data.matrix.data, dtype=np.float64).sum())


@dataclass(frozen=True)
class EmbeddingsTask(Task):
    """The task of word vectors: reconstruct the associations of words with contexts by structured sparse codes."""

    name: str = "embeddings"
    layout = DimensionLayout
    models = (codes,)
    losses = (PMIReconstruction,)
    tensor_parts = artifact.TENSOR_PARTS

    def prepare(self, corpus, features: Mapping, filter: Callable, cache: int) -> WordData:
        """Task of word vectors: count the co-occurrences in running text."""
        if not isinstance(corpus, RunningText | TextSplits):
            raise UserError(
                "task=embeddings reads running text: take data=running_text, or text or another corpus of it"
            )
        if not filters.keeps_all(filter):
            raise UserError("task=embeddings has windows and no templates: leave out filter=...")
        return prepare(corpus, checked_options(features))

    def build(self, stage: Stage, data: WordData) -> tuple[VectorModule, TermPenalties]:
        """Task of word vectors: build the Lightning module and the penalties of a training stage."""
        model = stage.scorer(data, of_groups=_dimensions_of_groups(stage))
        model.start_from(data, stage.seed)
        parameters = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
        penalties = place(stage.terms, parameters, DimensionLayout())
        identity = stage.fingerprint(data.name, list(data.words), data.matrix.indptr, data.matrix.data)
        return VectorModule(model, stage.loss(), stage.optimizer, data, stage.final_lr, identity), penalties

    def validate(self, stage: Stage, data: WordData, optimizer: torch.optim.Optimizer) -> None:
        """Task of word vectors: raise an error for penalties on the dictionary, whose atoms have norms of at most 1."""
        borne(stage.terms, [TABLE, "model.dictionary"])

    def check_solver(
        self, stage: Stage, module: VectorModule, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]
    ) -> None:
        """Task of word vectors: raise an error for solvers that cannot learn products, and for limits of the others."""
        if not isinstance(optimizer, (*OWN_STEPS, *BY_GRADIENT)):
            raise UserError(
                "task=embeddings learns codes and dictionary: take solver=online_dictionary, algorithm1 or adamw"
            )
        if module.model.codes is not None and not isinstance(optimizer, OnlineDictionary):
            raise UserError("codes as sparse columns need solver=online_dictionary, or set model.sparse=false")
        if isinstance(optimizer, OWN_STEPS):
            name = "algorithm1" if isinstance(optimizer, SampledEntries) else "online_dictionary"
            if stage.loss().weighting != "none":
                raise UserError(f"solver={name} has no weights of entries: set loss.weighting=none or solver=adamw")
            if module.model.word_bias is not None:
                raise UserError(f"solver={name} has no biases: set model.biases=false or solver=adamw")
        if stage.budget is not None or stage.admm is not None or len(stage.terms) > 1:
            raise UserError("task=embeddings has one penalty with a strength: leave out reg.budget, reg.admm and also")

    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[WordData, dict[str, Tensor]]:
        """Task of word vectors: a second stage is refused, as it would have to keep zeros."""
        raise UserError("task=embeddings has one stage: take recipe=direct")

    def inherit(self, module: VectorModule, before: StageResult, support: dict[str, Tensor]) -> None:
        """Task of word vectors: a second stage is refused."""
        raise UserError("task=embeddings has one stage: take recipe=direct")

    def alive(self, result: StageResult) -> bool:
        """Task of word vectors: whether any code is nonzero."""
        return csr_array(result.module.model.vectors()).nnz > 0

    def sparsity(self, data: WordData, first: StageResult, last: StageResult) -> dict[str, object]:
        """Task of word vectors: counts of words, dimensions and nonzero codes.

        For a planted corpus, the result has precision and recall of the dimensions too."""
        model = last.module.model
        vectors = csr_array(model.vectors())
        counts = {
            "features": data.items,
            "dimensions": model.dimensions,
            "weights": model.dimensions * data.items,
            "nonzero": vectors.nnz,
            "rows_alive": len(np.unique(vectors.indices)),
            "words_alive": int((np.diff(vectors.indptr) > 0).sum()),
        }
        groups = None if model.codes is not None else first.group_count()
        counts |= {} if groups is None else groups._asdict()
        return counts | (report.planted_scores(data, vectors.toarray().T) if data.planted else {})

    def write_report(
        self, folder: Path, data: WordData, results: Sequence[StageResult], last: StageResult
    ) -> Table | None:
        """Task of word vectors: write the table of dimensions, with the words and contexts that define each."""
        model = last.module.model
        codes, dictionary = csr_array(model.vectors().T), model.dictionary.detach().numpy()
        report.write_dimensions(folder, report.dimension_table(data, codes, dictionary, _names(last)))
        return report.dimension_table(data, codes, dictionary, _names(last), report.FEW_WORDS)

    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Task of word vectors: write the artifact; returns its size in bytes."""
        model, data = result.module.model, result.data
        vectors = WordVectors.of(data.words, data.frequency, model.vectors().T, model.dictionary.detach().numpy())
        return artifact.save(folder, vectors)


def _dimensions_of_groups(stage: Stage) -> int | None:
    """Task of word vectors: the number of dimensions of the trees that a stage has as groups; None without trees."""
    for term in stage.terms:
        if term.groups is not None and callee(term.groups) in (trees_of_dimensions, random_groups_of_dimensions):
            options = term.groups.keywords
            return sum(level_sizes(options["trees"], options["branching"]))
    return None


def _names(result: StageResult) -> list[str]:
    """Task of word vectors: the names of the dimensions, by the trees of the penalty if there are any."""
    table = result.module.model.table
    groups = [penalty.groups for penalty in result.penalties.values() if penalty.groups is not None]
    if groups and len(groups[0].node_names) == len(table):
        return list(groups[0].node_names)
    return [f"{k}" for k in range(1, len(table) + 1)]
