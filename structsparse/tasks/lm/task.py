"""How the stages of a run build m-gram models, and what a run leaves behind of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.base.files import atomic_file
from structsparse.corpora.known.texts import Texts
from structsparse.corpora.text import Text
from structsparse.features import filters
from structsparse.losses.softmax import SoftmaxLM
from structsparse.report import tables as report
from structsparse.solvers.base import solver_of
from structsparse.structures.contexts import Contexts
from structsparse.tasks.lm import artifact
from structsparse.tasks.lm.contexts import ContextTree, Places
from structsparse.tasks.lm.data import TRAIN, LanguageData, Target
from structsparse.tasks.lm.groups import ContextLayout
from structsparse.tasks.lm.kneser_ney import KneserNey
from structsparse.tasks.lm.model import NgramModel
from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.training.module import TaskModule
from structsparse.training.scores import Perplexity
from structsparse.training.stage import Outcome, Stage
from structsparse.training.task import Placed, Task, fingerprint
from structsparse.training.terms import borne, place

PRECISIONS = "float32", "float64"
MOST_ENTRIES = 10_000  # in the report


def ngram(data: LanguageData, order: int, collapse: bool, alpha: float, base: str, precision: str) -> NgramModel:
    """The log-linear model, on the trie of all contexts or with chains of them joined; words begin with their shares of
    the text."""
    if collapse and alpha != 1:
        raise UserError(
            f"model.collapse=true joins contexts that have equal weights, which model.alpha={alpha} takes from them; "
            "set model.alpha=1"
        )
    if precision not in PRECISIONS:
        raise UserError(f"model.precision is {precision}; expected one of {', '.join(PRECISIONS)}")
    trie = data.trie(order)
    model = NgramModel(trie.collapse()[0] if collapse else trie, alpha, base).to(getattr(torch, precision))
    with torch.no_grad():
        model.table.copy_(model.start())
    return model


def kneser_ney(data: LanguageData, order: int, modified: bool) -> KneserNey:
    """The yardstick: counted, not trained."""
    return KneserNey(data.trie(order), modified=modified)


class Language(TaskModule):
    """Trains an NgramModel. One on a collapsed tree is judged on the trie that it stands for."""

    def __init__(
        self,
        model: NgramModel,
        trie: ContextTree | None,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        texts: Mapping[str, Text],
        penalised: Sequence[str],
        final_lr: float = 1.0,
        fingerprint: str = "",
    ) -> None:
        super().__init__(loss, optimizer, Perplexity, penalised, final_lr, fingerprint)
        self.model, self.trie, self.texts = model, trie, texts
        self.found: dict[str, Places] = {}
        self.kept: list | None = None  # the model on the trie, and for each entry of the trie that of ours

    @property
    def linear(self) -> bool:
        return True

    def step(self, batch: Target) -> Tensor:
        if batch.part != TRAIN:
            return surprise(self, batch)
        if batch.chosen is None:
            structure = self.model.structure
            return self.loss(self.model(), structure.node_ends, structure.entry_ends) / batch.items
        small, rows = self.model.tree.restrict(self.places(TRAIN).take(batch.chosen))
        structure = Contexts(small).to(self.device)
        return self.model.surprise_of(structure, torch.from_numpy(rows).to(self.device)) / batch.items

    def places(self, part: str) -> Places:
        """Where the targets of a text stand in the tree, or in the trie that it stands for."""
        if part not in self.found:
            self.found[part] = (self.trie or self.model.tree).locate(self.texts[part])
        return self.found[part]

    def count(self, batch: Target, score: Perplexity) -> None:
        text = self.texts[batch.part]
        score.add(self.log_probabilities(batch.part), text.known[text.targets])

    def log_probabilities(self, part: str) -> np.ndarray:
        """float64 [targets]"""
        return self.written_out().log_probabilities(self.places(part)).cpu().numpy()

    @torch.no_grad()
    def written_out(self) -> NgramModel:
        """The model on a trie."""
        if self.trie is None:
            return self.model
        if self.kept is None:
            whole = NgramModel(self.trie, self.model.alpha, self.model.base_name).to(self.model.table)
            self.kept = [whole, torch.from_numpy(self.trie.collapse()[1]).long()]  # in a list it is no part of ours
        whole, of = self.kept
        whole.table.copy_(self.model.table[of.to(self.device)])
        return whole


class Counted(TaskModule):
    """A model that is counted from the text, and has nothing to train."""

    def __init__(self, model: KneserNey, texts: Mapping[str, Text], fingerprint: str = "") -> None:
        super().__init__(nn.Identity(), None, Perplexity, (), 1.0, fingerprint)
        self.model, self.texts = model, texts

    def step(self, batch: Target) -> Tensor:
        return surprise(self, batch)

    def count(self, batch: Target, score: Perplexity) -> None:
        text = self.texts[batch.part]
        score.add(self.log_probabilities(batch.part), text.known[text.targets])

    def log_probabilities(self, part: str) -> np.ndarray:
        """float64 [targets]"""
        return self.model.log_probabilities(self.texts[part])


def surprise(module: Language | Counted, batch: Target) -> Tensor:
    """The mean loss of a text that nothing is fitted to: what its perplexity is the exponential of."""
    text, told = module.texts[batch.part], module.log_probabilities(batch.part)
    counted = text.known[text.targets]
    if batch.chosen is not None:
        told, counted = told[batch.chosen], counted[batch.chosen]
    return torch.tensor(-told[counted].mean(), device=module.device)


@dataclass(frozen=True)
class LanguageModelTask(Task):
    """Language models: the next word from the words before it."""

    name: str = "lm"
    layout = ContextLayout
    models = (ngram, kneser_ney)
    losses = (SoftmaxLM,)

    def prepare(self, corpus: Texts, features: Mapping, filter: Callable, cache: int) -> LanguageData:
        """All features are contexts, which are counted when a model asks for them: none is chosen or cached."""
        if not isinstance(corpus, Texts):
            raise UserError("task=lm reads running text: take data=text, ptb or another corpus of it")
        if "templates" in features or getattr(filter, "func", filter) is not filters.all_of:
            raise UserError("task=lm has contexts and no templates: leave out features=... and filter=...")
        return LanguageData(corpus)

    def build(self, stage: Stage, data: LanguageData) -> tuple[Language | Counted, Placed]:
        model = stage.scorer(data)
        identity = fingerprint(stage, *_identity(data))
        if isinstance(model, KneserNey):
            return Counted(model, data.texts.parts, identity), []
        parameters = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
        placed = place(stage.terms, parameters, ContextLayout(model.tree))
        loss = stage.loss(model.structure)
        trie = data.trie(model.tree.order) if model.tree.collapsed else None
        module = Language(model, trie, loss, stage.optimizer, data.texts.parts, [*parameters], stage.final_lr, identity)
        return module, placed

    def foresee(self, stage: Stage, data: LanguageData, optimizer: torch.optim.Optimizer) -> None:
        borne(stage.terms, ["model.table"])

    def check(self, stage: Stage, module, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]) -> None:
        if solver_of(optimizer).needs_sentences:
            raise UserError(
                "solver: one that goes from sentence to sentence is for taggers; take fista, or accelerated_sgd with "
                "batch=400"
            )

    def narrow(self, before: Outcome, support: dict[str, Tensor]) -> tuple[LanguageData, dict[str, Tensor]]:
        """All contexts stay, as others are found through them; what is dead is kept so."""
        return before.data, {name: mask for name, mask in support.items() if not mask.all()}

    @torch.no_grad()
    def inherit(self, module: Language, before: Outcome, support: dict[str, Tensor]) -> None:
        old, new = before.module.model.table, module.model.table
        if old.shape != new.shape:
            raise UserError("warm=true: this model cannot start from the weights of the stage before; set it to false")
        new.copy_(old)
        for mask in support.values():
            new.mul_(mask)

    def alive(self, outcome: Outcome) -> bool:
        return isinstance(outcome.module, Counted) or bool((outcome.module.model.table != 0).any())

    def sparsity(self, data: LanguageData, first: Outcome, last: Outcome) -> dict[str, object]:
        if isinstance(last.module, Counted):
            model = last.module.model
            return {"features": model.nodes, "weights": model.entries, "nonzero": model.entries}
        model = last.module.model
        tree, table = model.tree, model.table.detach().cpu()
        living = (table != 0).numpy()
        counts = {
            "features": tree.nodes,
            "weights": tree.entries,
            "nonzero": int(living.sum()),
            "parameters": distinct(tree, table.numpy()),
            "rows_alive": len(np.unique(tree.entry_node[living])),
        }
        groups = {name: p.groups for name, p in first.penalties.items() if p.groups is not None}
        if groups:
            weights = dict(first.module.named_parameters())
            alive = [group.alive(weights[name].detach()) for name, group in groups.items()]
            counts |= {"groups": sum(map(len, alive)), "groups_alive": sum(int(a.sum()) for a in alive)}
        return counts

    def write_report(
        self, folder: Path, data: LanguageData, outcomes: Sequence[Outcome], last: Outcome
    ) -> report.Table | None:
        _write_surprise(folder / "log_probabilities.npy", data, last.module)
        if isinstance(last.module, Counted):
            return None
        tree, weights = last.module.model.tree, last.module.model.table.detach().cpu().numpy()
        table = by_depth(tree, weights)
        report.write_text(folder / "contexts.tsv", report.tsv(heaviest(tree, weights)))
        report.write_text(folder / "depths.tsv", report.tsv(table))
        report.write_text(folder / "depths.md", report.markdown(table))
        return table

    def export(self, folder: Path, outcome: Outcome, console: Console) -> int | None:
        if isinstance(outcome.module, Counted):
            return None
        model, reading = outcome.module.written_out(), outcome.data.texts.reading
        table, base = model.table.detach().cpu().numpy(), None if model.base is None else model.base.cpu().numpy()
        return artifact.save(folder, LanguageModel.of(model.tree, table, model.alpha, base, reading))


def distinct(tree: ContextTree, table: np.ndarray) -> int:
    """Parameters that have a value of their own: living entries less those that continue a path without branches at the
    same value (Nelakanti et al. 2013, definition 3)."""
    living = table != 0
    above, below = tree.entry_above[tree.words :], slice(tree.words, None)
    children = np.bincount(above[living[below]], minlength=tree.entries)  # that live
    same = living[below] & (children[above] == 1) & _equal(table[below], table[above])
    return int(living.sum() - same.sum())


def _equal(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.abs(left - right) <= 1e-6 * np.maximum(np.abs(left), np.abs(right))


def by_depth(tree: ContextTree, table: np.ndarray) -> report.Table:
    """How much lives among the contexts of each length."""
    depth, living = tree.depth[tree.entry_node], table != 0
    contexts = np.zeros(tree.nodes, bool)
    contexts[tree.entry_node[living]] = True
    rows = []
    for k in range(int(tree.depth.max()) + 1):
        at, nodes = depth == k, tree.depth == k
        own = table[at & living]
        numbers = int(nodes.sum()), int((nodes & contexts).sum()), int(at.sum()), len(own)
        rows.append((k, *numbers, float(np.abs(own).mean()) if len(own) else 0.0, float(np.linalg.norm(own))))
    header = "words of context", "contexts", "living", "entries", "living entries", "mean size", "norm"
    return report.Table(header, rows)


def _write_surprise(path: Path, data: LanguageData, module: Language | Counted) -> None:
    """Natural logarithms of the probabilities of the test targets that the vocabulary knows, in the order of the text:
    by them two models are compared target by target."""
    text = data.texts.test
    with atomic_file(path) as file:
        np.save(file, module.log_probabilities("test")[text.known[text.targets]])


def heaviest(tree: ContextTree, table: np.ndarray) -> report.Table:
    """The living entries in words, first those that gain the most: weight times how often training has them."""
    gains = np.abs(table) * tree.entry_count
    entries = np.argsort(-gains, kind="stable")[: min(int((table != 0).sum()), MOST_ENTRIES)]
    names = (tree.context(node) for node in tree.entry_node[entries].tolist())
    words = (tree.vocabulary.name(word) for word in tree.entry_word[entries].tolist())
    numbers = table[entries].tolist(), tree.entry_count[entries].tolist()
    return report.Table(("context", "word", "weight", "count"), list(zip(names, words, *numbers, strict=True)))


def _identity(data: LanguageData) -> tuple:
    """What tells these data from others."""
    return data.texts.name, list(data.texts.vocabulary.words), data.texts.train.codes
