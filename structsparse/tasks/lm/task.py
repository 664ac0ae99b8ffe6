"""The language-model task: Lightning modules, methods that training calls, and functions that make n-gram models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.corpora.known.texts import TextSplits
from structsparse.corpora.text import EncodedText
from structsparse.features import filters
from structsparse.losses.softmax import SoftmaxLM
from structsparse.report.tables import Table
from structsparse.solvers.base import solver_of
from structsparse.structures.contexts import Contexts
from structsparse.tasks.lm import artifact, report
from structsparse.tasks.lm.contexts import ContextTree, Places
from structsparse.tasks.lm.data import TRAIN, LanguageData, TargetBatch
from structsparse.tasks.lm.groups import ContextLayout
from structsparse.tasks.lm.kneser_ney import KneserNey
from structsparse.tasks.lm.mixture import DEV, Mixture, check_share
from structsparse.tasks.lm.model import NgramModel
from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.tasks.lm.scores import Perplexity
from structsparse.training.module import TaskModule
from structsparse.training.stage import Stage, StageResult, TermPenalties
from structsparse.training.task import Task
from structsparse.training.terms import borne, place

PRECISIONS = "float32", "float64"  # choices of model.precision, the dtype of the weights


def ngram(
    data: LanguageData, order: int, collapse: bool, alpha: float, base: str, precision: str, kneser_ney: float | str
) -> NgramModel:
    """Language-model task: make the log-linear n-gram model with initial weights.

    If `collapse` is set, contexts that occur at the same positions of the training text share their weights.
    `kneser_ney` is the share of Kneser-Ney in the model that is tested and exported."""
    if collapse and alpha != 1:
        raise UserError(
            f"model.collapse=true joins contexts with equal weights, but model.alpha={alpha} makes their weights "
            "differ; set model.alpha=1"
        )
    if precision not in PRECISIONS:
        raise UserError(f"model.precision is {precision}; expected one of {', '.join(PRECISIONS)}")
    check_share(kneser_ney)
    trie = data.trie(order)
    model = NgramModel(trie.collapse()[0] if collapse else trie, alpha, base).to(getattr(torch, precision))
    with torch.no_grad():
        model.table.copy_(model.start())
    model.kneser_ney = kneser_ney
    return model


def kneser_ney(data: LanguageData, order: int, modified: bool) -> KneserNey:
    """Language-model task: make the Kneser-Ney baseline, which is estimated from counts and is not trained."""
    return KneserNey(data.trie(order), modified=modified)


class LanguageModule(TaskModule):
    """The Lightning module of the language-model task, which trains an `NgramModel`.

    If contexts share weights (collapsed tree), the model is expanded to the full trie of contexts for evaluation."""

    def __init__(
        self,
        model: NgramModel,
        trie: ContextTree | None,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        texts: Mapping[str, EncodedText],
        penalised: Sequence[str],
        final_lr: float = 1.0,
        fingerprint: str = "",
    ) -> None:
        super().__init__(loss, optimizer, Perplexity, penalised, final_lr, fingerprint)
        self.model, self.trie, self.texts = model, trie, texts
        self._places: dict[str, Places] = {}  # cache of the method `places`; keys: train, dev, test
        # cache of `on_trie`: the model on the full trie, and for each trie entry its index in the collapsed tree
        self._on_trie: list | None = None

    @property
    def linear(self) -> bool:
        """Language-model task: whether scores are linear in the weights, which holds for n-gram models."""
        return True

    def step(self, batch: TargetBatch) -> Tensor:
        """Language-model task: the mean loss of a batch of targets (words to predict).

        For dev and test, the loss has no gradient."""
        if batch.part != TRAIN:
            return mean_surprise(self, batch)
        if batch.chosen is None:
            structure = self.model.structure
            return self.loss(self.model(), structure.node_ends, structure.entry_ends) / batch.items
        part, rows = self.model.tree.restrict(self.places(TRAIN).take(batch.chosen))
        structure = Contexts(part).to(self.device)
        return self.model.surprise_of(structure, torch.from_numpy(rows).to(self.device)) / batch.items

    def places(self, part: str) -> Places:
        """Language-model task: the places of the targets of a part (train, dev or test) in the trie of contexts."""
        if part not in self._places:
            self._places[part] = (self.trie or self.model.tree).locate(self.texts[part])
        return self._places[part]

    def count(self, batch: TargetBatch, score: Perplexity) -> None:
        """Language-model task: add the n-gram log-probabilities of all words of `batch.part` to a score."""
        text = self.texts[batch.part]
        score.add(self.log_probabilities(batch.part), text.known[text.targets])

    def log_probabilities(self, part: str) -> np.ndarray:
        """Language-model task: the n-gram log-probabilities of the words of a part (train, dev or test)."""
        return self.on_trie().log_probabilities(self.places(part)).cpu().numpy()

    @torch.no_grad()
    def on_trie(self) -> NgramModel:
        """Language-model task: the n-gram model on the full trie of contexts.

        A weight that several contexts share (collapsed tree) is copied to each of them."""
        if self.trie is None:
            return self.model
        if self._on_trie is None:
            model = NgramModel(self.trie, self.model.alpha, self.model.base_name).to(self.model.table)
            rows = torch.from_numpy(self.trie.collapse()[1]).long()
            self._on_trie = [model, rows]  # a list, so that the model is not registered as a submodule
        model, rows = self._on_trie
        model.table.copy_(self.model.table[rows.to(self.device)])
        return model

    def exported(self) -> tuple[ContextTree, np.ndarray, float, np.ndarray | None]:
        """Language-model task: trie, weights, alpha and base scores of the n-gram model, for the artifact."""
        model = self.on_trie()
        base = None if model.base is None else model.base.cpu().numpy()
        return model.tree, model.table.detach().cpu().numpy(), model.alpha, base

    def mixed(self) -> LanguageModule:
        """Language-model task: the module of the n-gram model after training, mixed with Kneser-Ney on request.

        The option model.kneser_ney is the share of Kneser-Ney. If it is `dev`, dev chooses the share."""
        share = self.model.kneser_ney
        if share == 0:
            return self
        mixture, dev = Mixture(self.on_trie()), self.texts["dev"]
        if share == DEV:
            share = mixture.chosen_share(self.places("dev").take(dev.known[dev.targets]))
        model = mixture.model(share)
        model.kneser_ney = share
        loss = SoftmaxLM(model.structure)
        return LanguageModule(model, None, loss, self.make_optimizer, self.texts, (), fingerprint=self.fingerprint)


class KneserNeyModule(TaskModule):
    """The Lightning module of the language-model task for a Kneser-Ney model, which is not trained."""

    def __init__(self, model: KneserNey, texts: Mapping[str, EncodedText], fingerprint: str = "") -> None:
        super().__init__(nn.Identity(), None, Perplexity, (), 1.0, fingerprint)
        self.model, self.texts = model, texts

    def step(self, batch: TargetBatch) -> Tensor:
        """Language-model task: the mean negative log-probability of a Kneser-Ney model on a batch, without gradient.

        The mean is over the targets that are in the vocabulary."""
        return mean_surprise(self, batch)

    def count(self, batch: TargetBatch, score: Perplexity) -> None:
        """Language-model task: add the Kneser-Ney log-probabilities of all words of `batch.part` to a score."""
        text = self.texts[batch.part]
        score.add(self.log_probabilities(batch.part), text.known[text.targets])

    def log_probabilities(self, part: str) -> np.ndarray:
        """Language-model task: the Kneser-Ney log-probabilities of the words of a part (train, dev or test)."""
        return self.model.log_probabilities(self.texts[part])

    def exported(self) -> tuple[ContextTree, np.ndarray]:
        """Language-model task: trie and weights of the n-gram model that has the probabilities of Kneser-Ney."""
        return self.model.tree, self.model.increments

    def mixed(self) -> KneserNeyModule:
        """Language-model task: the module of the Kneser-Ney model itself, which is not mixed with any other model."""
        return self


def mean_surprise(module: LanguageModule | KneserNeyModule, batch: TargetBatch) -> Tensor:
    """Language-model task: the mean negative log-probability of the words of a batch, without gradient.

    The mean is over the words in the vocabulary. The exponential of the mean is the perplexity."""
    text, values = module.texts[batch.part], module.log_probabilities(batch.part)
    known = text.known[text.targets]
    if batch.chosen is not None:
        values, known = values[batch.chosen], known[batch.chosen]
    return torch.tensor(-values[known].mean(), device=module.device)


@dataclass(frozen=True)
class LanguageModelTask(Task):
    """The language-model task: predict the next word from the words before it."""

    name: str = "lm"
    layout = ContextLayout
    models = (ngram, kneser_ney)
    losses = (SoftmaxLM,)
    tensor_parts = artifact.TENSOR_PARTS

    def prepare(self, corpus: TextSplits, features: Mapping, filter: Callable, cache: int) -> LanguageData:
        """Language-model task: make the data for training from a corpus of running text."""
        if not isinstance(corpus, TextSplits):
            raise UserError("task=lm reads running text: take data=text, ptb or another corpus of it")
        if "templates" in features or not filters.keeps_all(filter):
            raise UserError("task=lm has contexts and no templates: leave out features=... and filter=...")
        return LanguageData(corpus)

    def build(self, stage: Stage, data: LanguageData) -> tuple[LanguageModule | KneserNeyModule, TermPenalties]:
        """Language-model task: build the Lightning module and the penalties of a training stage.

        A Kneser-Ney model has no penalties."""
        model = stage.scorer(data)
        identity = stage.fingerprint(*_identity(data))
        if isinstance(model, KneserNey):
            return KneserNeyModule(model, data.texts.parts, identity), []
        parameters = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
        penalties = place(stage.terms, parameters, ContextLayout(model.tree))
        loss = stage.loss(model.structure)
        trie = data.trie(model.tree.order) if model.tree.collapsed else None
        texts, names = data.texts.parts, [*parameters]
        module = LanguageModule(model, trie, loss, stage.optimizer, texts, names, stage.final_lr, identity)
        return module, penalties

    def validate(self, stage: Stage, data: LanguageData, optimizer: torch.optim.Optimizer) -> None:
        """Language-model task: raise an error for penalties on parameters that n-gram models do not have."""
        borne(stage.terms, ["model.table"])

    def check_solver(
        self, stage: Stage, module, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]
    ) -> None:
        """Language-model task: raise an error for online solvers, which train only taggers and parsers."""
        if solver_of(optimizer).needs_sentences:
            raise UserError(
                "solver: online solvers that go from sentence to sentence do not fit task=lm; take fista, or "
                "accelerated_sgd with batch=400"
            )

    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[LanguageData, dict[str, Tensor]]:
        """Language-model task: the data and the masks of nonzero weights for the next training stage.

        The data keep all contexts. Masks that keep all weights are left out."""
        return before.data, {name: mask for name, mask in support.items() if not mask.all()}

    @torch.no_grad()
    def inherit(self, module: LanguageModule, before: StageResult, support: dict[str, Tensor]) -> None:
        """Language-model task: start an n-gram model from the weights of the previous stage.

        Weights that a mask in `support` excludes become zero."""
        old, new = before.module.model.table, module.model.table
        if old.shape != new.shape:
            raise UserError("warm=true: this model cannot start from the weights of the stage before; set it to false")
        new.copy_(old)
        for mask in support.values():
            new.mul_(mask)

    def alive(self, result: StageResult) -> bool:
        """Language-model task: whether an n-gram model has a nonzero weight; always true for Kneser-Ney models."""
        return isinstance(result.module, KneserNeyModule) or bool((result.module.model.table != 0).any())

    def finalize(self, result: StageResult) -> StageResult:
        """Language-model task: result of the last stage with the model to test, mixed with Kneser-Ney on request."""
        return replace(result, module=result.module.mixed())

    def sparsity(self, data: LanguageData, first: StageResult, last: StageResult) -> dict[str, object]:
        """Language-model task: counts of contexts, weights and groups of a language model.

        `parameters` is the count by `report.distinct_parameters`."""
        if isinstance(last.module, KneserNeyModule):
            model = last.module.model
            return {"features": model.nodes, "weights": model.entries, "nonzero": model.entries}
        model = last.module.model
        tree, table = model.tree, model.table.detach().cpu()
        living = (table != 0).numpy()
        counts = {
            "features": tree.nodes,
            "weights": tree.entries,
            "nonzero": int(living.sum()),
            "parameters": report.distinct_parameters(tree, table.numpy()),
            "rows_alive": len(np.unique(tree.entry_node[living])),
        }
        if model.kneser_ney:
            counts["kneser_ney"] = float(model.kneser_ney)
        groups = first.group_count()
        return counts if groups is None else counts | groups._asdict()

    def write_report(
        self, folder: Path, data: LanguageData, results: Sequence[StageResult], last: StageResult
    ) -> Table | None:
        """Language-model task: write log_probabilities.npy and, for an n-gram model, contexts.tsv and depths.tsv.

        Returns the table in depths.tsv, or None for a Kneser-Ney model."""
        test = data.texts.test
        known = last.module.log_probabilities("test")[test.known[test.targets]]
        report.write_log_probabilities(folder / "log_probabilities.npy", known)
        if isinstance(last.module, KneserNeyModule):
            return None
        return report.write_tables(folder, last.module.model.tree, last.module.model.table.detach().cpu().numpy())

    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Language-model task: write the artifact of a language model; returns the size in bytes.

        A Kneser-Ney model is written as the log-linear n-gram model with the same probabilities."""
        reading = result.data.texts.reading
        return artifact.save(folder, LanguageModel.of(*result.module.exported(), reading=reading))


def _identity(data: LanguageData) -> tuple:
    """Language-model task: the values that identify the data in the fingerprint of a training stage.

    The values are the name of the corpus, the vocabulary, and the word codes of the training text."""
    return data.texts.name, list(data.texts.vocabulary.words), data.texts.train.codes
