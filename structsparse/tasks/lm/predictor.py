"""Use of a trained language model: how probable a text is, which words come next and why, and new text.

Nothing here knows of training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.text import END, START, Coded, Reading, Text, Vocabulary, code_pieces
from structsparse.kernels.structures import contexts_pruned as ngrams
from structsparse.tasks.lm.sampling import Sampler
from structsparse.tasks.lm.stream import sentences_of_file, sentences_of_stream
from structsparse.tasks.lm.trie import Trie
from structsparse.training.scores import Perplexity

if TYPE_CHECKING:
    from structsparse.tasks.lm.contexts import ContextTree

LONGEST = 1000  # words of a drawn sentence: who never learnt to end does not go on for ever


class Part(NamedTuple):
    """What one context adds to the score of a word."""

    context: tuple[str, ...]
    weight: float


class NextWord(NamedTuple):
    word: str
    probability: float  # exp of the sum of the parts, divided by the same of all words
    parts: tuple[Part, ...]  # from the empty context on


class Context(NamedTuple):
    """A context, and what it adds to the scores of the words that it has weights for."""

    words: tuple[str, ...]
    weights: dict[str, float]


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """p(word | context) in proportion to exp(base[word] + sum of alpha^depth * weight), over the contexts of 0, 1, 2,
    ... words that end the text before the word and that have a weight for it."""

    vocabulary: Vocabulary
    reading: Reading  # how text is read
    trie: Trie
    weights: np.ndarray  # float32 or float64 [entries]
    alpha: float = 1.0
    base: np.ndarray | None = None  # the same [V]; without it, zeros

    @classmethod
    def of(
        cls, tree: ContextTree, table: np.ndarray, alpha: float = 1.0, base: np.ndarray | None = None,
        reading: Reading | None = None,
    ) -> LanguageModel:  # fmt: skip
        """What lives of a model on a trie: a weight for each of its entries, and the arguments of `NgramModel`."""
        if tree.collapsed:
            raise UserError("a language model is made of a trie; write a collapsed tree out first")
        table = np.asarray(table)
        small, rows = tree.prune(table != 0)
        trie = Trie(
            small.words, small.order, small.above, small.word, small.starts, small.entry_word, small.entry_count
        )
        base = None if base is None else np.asarray(base)
        return cls(tree.vocabulary, reading or Reading(), trie, table[rows], float(alpha), base)

    @cached_property
    def increments(self) -> np.ndarray:
        """float64 [entries], what each adds to the score of its word"""
        scale = np.power(float(self.alpha), self.trie.depth)
        found = self.weights * np.repeat(scale, np.diff(self.trie.starts))
        if self.base is not None:
            found[: self.trie.words] += self.base
        return found

    @cached_property
    def scores(self) -> np.ndarray:
        """float64 [entries], the score of each word after its context"""
        found = np.empty(self.trie.entries)
        ngrams.score(self.increments, self.trie.entry_above, found)
        return found

    @cached_property
    def log_z(self) -> np.ndarray:
        """float64 [nodes], the logarithm of the sum of exp score over all words"""
        found, trie = np.empty(self.trie.nodes), self.trie
        ngrams.normalise(self.scores, trie.above, trie.starts, trie.entry_word, trie.entry_above, found)
        return found

    # --- texts

    def encode(self, sentences: Iterable[Sequence[str]], source: str = "text") -> Text:
        """Sentences of words."""
        return code_pieces(source, ((list(words), True) for words in sentences), self.reading).text(self.vocabulary)

    def stream(self, source: Path | BinaryIO) -> Iterator[tuple[Coded, Text]]:
        """A file, plain or gzipped, or what comes through a pipe: some sentences at a time, in memory that does not
        grow. In `Coded` words stand that the vocabulary lacks."""
        blocks = sentences_of_stream if hasattr(source, "read") else sentences_of_file
        for coded in blocks(source, self.reading):
            yield coded, coded.text(self.vocabulary)

    def log_probabilities(self, text: Text) -> np.ndarray:
        """The natural logarithm of the probability of every target: float64 [targets]"""
        if text.vocabulary is not self.vocabulary and text.vocabulary != self.vocabulary:
            raise UserError(f"{text.source}: its words are coded for another model, expected the codes of this one")
        node, entry = self.trie.locate(text)
        return self.scores[entry] - self.log_z[node]

    def perplexity(self, *texts: Text) -> dict[str, float]:
        """Over the targets that the vocabulary knows, over all of them (`perplexity_open`), and how many there are."""
        score = Perplexity()
        for text in texts:
            score.add(self.log_probabilities(text), text.known[text.targets])
        return score.result()

    # --- next words

    def distribution(self, context: str | Sequence[str]) -> np.ndarray:
        """The probability of every word of the vocabulary after these: float64 [V]"""
        return self._after(self.trie.path(self._codes(context))[-1])

    def next_words(self, context: str | Sequence[str], count: int = 10) -> list[NextWord]:
        """The most probable next words, and what each context that ends like this one adds to their scores.

        A context that begins with `<s>` begins its sentence."""
        if count < 1:
            raise UserError(f"the {count} most probable words were asked for, expected a number from 1 on")
        path = self.trie.path(self._codes(context))
        chances = self._after(path[-1])
        best = np.argsort(-chances, kind="stable")[:count].tolist()
        name = self.vocabulary.name
        return [NextWord(name(word), float(chances[word]), tuple(self._parts(path, word))) for word in best]

    def sample(
        self, count: int, seed: int = 0, temperature: float = 1.0, start: str | Sequence[str] = (),
        longest: int = LONGEST,
    ) -> Iterator[list[str]]:  # fmt: skip
        """Sentences that are drawn from the model and begin with these words, no longer than `longest`.

        At temperature t words are drawn in proportion to probability^(1/t)."""
        if not 0 < temperature < np.inf:
            raise UserError(f"the temperature is {temperature}, expected a positive number")
        generator, end = np.random.default_rng(seed), self.vocabulary.end
        sampler, begun = Sampler(self.trie, self.scores, temperature), self._codes(start, opens=True)
        for _ in range(count):
            sentence = list(begun)
            while len(sentence) <= longest and sentence[-1] != end:
                sentence.append(sampler.draw(sentence[-self.trie.order :], generator))
            yield [self.vocabulary.name(code) for code in sentence[1:] if code != end]

    def contexts(self) -> Iterator[Context]:
        """The living contexts, those with a weight that is not zero, shorter ones first."""
        name, bounds = self.vocabulary.name, self.trie.starts.tolist()
        for node in range(self.trie.nodes):
            begin, end = bounds[node : node + 2]
            living = begin + np.flatnonzero(self.weights[begin:end])
            if len(living):
                words = map(name, self.trie.entry_word[living].tolist())
                weights = dict(zip(words, self.increments[living].tolist(), strict=True))
                yield Context(tuple(map(name, self.trie.context(node))), weights)

    def unknown_words(self, context: str | Sequence[str]) -> list[str]:
        """Those of a context that count as `<unk>`."""
        return [word for word in self._words(context)[1] if word not in self.vocabulary.codes]

    def _words(self, context: str | Sequence[str], opens: bool = False) -> tuple[bool, list[str]]:
        """Whether a sentence begins with these words, as `<s>` or `</s>` before them says, and the words as the model
        reads them; what stands before such a mark is of another sentence."""
        tokens = self.reading.split(context) if isinstance(context, str) else list(context)
        marks = [place for place, token in enumerate(tokens) if token in (START, END)]
        if marks:
            opens, tokens = True, tokens[marks[-1] + 1 :]
        opening = self.reading.opening(tokens) if opens else 0
        return opens, [self.reading.word(token, k >= opening) for k, token in enumerate(tokens)]

    def _codes(self, context: str | Sequence[str], opens: bool = False) -> list[int]:
        opens, words = self._words(context, opens)
        known, unknown = self.vocabulary.codes, self.vocabulary.unknown
        return [*([self.vocabulary.start] if opens else []), *(known.get(word, unknown) for word in words)]

    def _after(self, node: int) -> np.ndarray:
        return np.exp(self.trie.after(node, self.scores) - self.log_z[node])

    def _parts(self, path: Sequence[int], word: int) -> Iterator[Part]:
        for node in path:
            entry = self.trie.entry(node, word)
            if node == 0 or entry >= 0:
                context = map(self.vocabulary.name, self.trie.context(node))
                yield Part(tuple(context), float(self.increments[entry]))
