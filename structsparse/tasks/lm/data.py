"""Language models: the next word from the words before it, scored by perplexity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.corpora.known.texts import Texts
from structsparse.corpora.text import Text
from structsparse.structures.contexts import Contexts
from structsparse.tasks.lm.contexts import ContextTree, Places
from structsparse.tasks.lm.kneser_ney import KneserNey
from structsparse.tasks.lm.model import NgramModel
from structsparse.training.batches import Progress
from structsparse.training.module import TaskModule
from structsparse.training.scores import Perplexity
from structsparse.training.task import Task

TRAIN = "train"


@dataclass(frozen=True)
class LanguageData:
    """Three texts in one vocabulary, and the trees of contexts made of the first."""

    texts: Texts
    trees: dict[int, ContextTree] = field(default_factory=dict, repr=False)  # tries by order, made when asked for
    truth: tuple[str, ...] = ()
    metric: str = "perplexity"

    @property
    def name(self) -> str:
        return self.texts.name

    @property
    def items(self) -> int:
        return len(self.texts.train.targets)

    @property
    def task(self) -> Task:
        from structsparse.tasks.lm.task import LanguageTask  # which builds what this file describes

        return LanguageTask()

    def describe(self) -> list[str]:
        return self.texts.describe()

    def trie(self, order: int) -> ContextTree:
        if order not in self.trees:
            self.trees[order] = ContextTree.build(self.texts.train, order)
        return self.trees[order]

    def batches(self, part: str, size: int | None, **sharing) -> Targets:
        """Targets of a part; dev and test, which are scored and not learnt from, come at once."""
        return Targets(part, self.texts.parts[part], size if part == TRAIN else None, **sharing)

    def whole(self, part: str) -> Targets:
        return self.batches(part, None)


@dataclass
class Target:
    """Some targets of a text, by their numbers; of all of them, none is named."""

    part: str
    chosen: np.ndarray | None  # int64 [targets]
    items: int
    sentences: Tensor = field(default_factory=lambda: torch.arange(0))  # an error message has none to name


class Targets(Progress):
    """Batches of the words to be predicted, in an order that depends on the seed and the epoch alone; it remembers how
    far it is."""

    def __init__(
        self, part: str, text: Text, size: int | None, *, shuffle: bool = False, seed: int = 0, rank=0, world: int = 1
    ) -> None:
        if world > 1:
            raise UserError(f"trainer.devices={world}: a language model is trained on one device")
        if size is not None and size < 1:
            raise UserError(f"batch={size}: expected a number of words, at least 1, or null for all")
        self.part, self.count, self.shuffle, self.seed = part, len(text.targets), shuffle, seed
        self.size = min(size or self.count, self.count)
        super().__init__()

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def __iter__(self) -> Iterator[Target]:
        if self.done >= len(self):
            self.done = 0
        order = None
        while self.done < len(self):
            if order is None and len(self) > 1:
                order = self._order()
            begin = self.done * self.size
            self.done += 1
            chosen = None if order is None else order[begin : begin + self.size]
            yield Target(self.part, chosen, self.count if chosen is None else len(chosen))

    def _order(self) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.count)


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
