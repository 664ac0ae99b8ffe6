"""Predictor of a trained language model: log-probabilities of texts, most probable next words, and random sentences.

This module does not import modules for training."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NoReturn

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.text import EncodedText, ProvisionalText, Vocabulary, code_pieces
from structsparse.corpora.text_reading import END, START, TextReading, sentences_of
from structsparse.kernels.structures import contexts_pruned as kernels
from structsparse.tasks.lm.sampling import Sampler
from structsparse.tasks.lm.scores import Perplexity
from structsparse.tasks.lm.stream import sentences_of_file, sentences_of_stream
from structsparse.tasks.lm.trie import Trie

if TYPE_CHECKING:
    from structsparse.tasks.lm.contexts import ContextTree

_EXPECTED = "a language model reads texts (str) or sentences (lists of words)"  # start of messages about wrong input
LONGEST = 1000  # maximum number of words of a random sentence, as some models never predict a sentence end
Texts = str | os.PathLike | Iterable[str | Sequence[str]]  # one text, a file, several texts, or several lists of words


class ScoredWord(NamedTuple):
    """Language-model predictor: a word of a text and its log-probability after the words before it."""

    word: str  # the word as the model reads it (for example lower-cased); `</s>` at the end of a sentence
    log_probability: float  # natural logarithm of the probability
    known: bool  # whether the vocabulary has the word; unknown words are scored as `<unk>`


class Part(NamedTuple):
    """Language-model predictor: what one context adds to the score of a next word."""

    context: tuple[str, ...]  # the words of the context, in text order
    weight: float  # what the context adds to the score


class NextWord(NamedTuple):
    """Language-model predictor: a probable next word, with its probability and what each context adds to its score."""

    word: str
    probability: float  # probability of the word after the context: softmax over the scores of all words
    parts: tuple[Part, ...]  # what each context adds to the score, beginning with the empty context


class Context(NamedTuple):
    """Language-model predictor: a context with nonzero weights, and what it adds to the scores of next words."""

    words: tuple[str, ...]  # the words of the context, in text order
    weights: dict[str, float]  # what the context adds to the score of each next word that has a nonzero weight


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """Predictor: a trained log-linear language model, with vocabulary, reading rules, context trie and weights.

        p(word | context) is proportional to exp(base[word] + sum over k of alpha^k * weight_k)

    Here weight_k is the weight of the word after the last k words of the context, k = 0, 1, 2, ... Missing weights are
    zero. base[word] is a constant score, and alpha a constant."""

    vocabulary: Vocabulary  # the words that can be predicted
    reading: TextReading  # rules by which text is split into sentences and words
    trie: Trie  # the contexts, and the next words that have a weight after each context
    weights: np.ndarray  # float32 or float64 [entries], one weight for each context and next word
    alpha: float = 1.0  # weights of contexts of k words are multiplied by alpha^k
    base: np.ndarray | None = None  # float32 or float64 [words], constant added to the score of each word; None: 0

    def __repr__(self) -> str:
        """Language-model predictor: a short description with the numbers of words, contexts and weights."""
        return f"LanguageModel({self.trie.words:,} words, {self.trie.nodes:,} contexts, {self.trie.entries:,} weights)"

    @classmethod
    def of(
        cls, tree: ContextTree, table: np.ndarray, alpha: float = 1.0, base: np.ndarray | None = None,
        reading: TextReading | None = None,
    ) -> LanguageModel:  # fmt: skip
        """Make the predictor of a language model from the weights of an `NgramModel`.

        `table` has a weight for each entry (context, next word) of `tree`. The tree must be a trie. Zero weights are
        left out, except those of the empty context."""
        if tree.collapsed:
            raise UserError("a language model is made from a trie; expand a collapsed tree first")
        table = np.asarray(table)
        small, rows = tree.prune(table != 0)
        trie = Trie(
            small.words, small.order, small.above, small.word, small.starts, small.entry_word, small.entry_count
        )
        base = None if base is None else np.asarray(base)
        return cls(tree.vocabulary, reading or TextReading(), trie, table[rows], float(alpha), base)

    @cached_property
    def increments(self) -> np.ndarray:
        """Language-model predictor: what each entry (context, word) adds to the score of the word.

        The result is float64 [entries]."""
        scale = np.power(float(self.alpha), self.trie.depth)
        increments = self.weights * np.repeat(scale, np.diff(self.trie.starts))
        if self.base is not None:
            increments[: self.trie.words] += self.base
        return increments

    @cached_property
    def scores(self) -> np.ndarray:
        """Language-model predictor: for each entry (context, word), the score of the word after the context.

        The result is float64 [entries]."""
        scores = np.empty(self.trie.entries)
        kernels.score(self.increments, self.trie.entry_above, scores)
        return scores

    @cached_property
    def log_z(self) -> np.ndarray:
        """Language-model predictor: the log-partition function of each context (float64 [nodes]).

        This is the logarithm of the sum of exp(score) over all words."""
        log_z, trie = np.empty(self.trie.nodes), self.trie
        kernels.normalise(self.scores, trie.above, trie.starts, trie.entry_word, trie.entry_above, log_z)
        return log_z

    # --- methods that predictors of all tasks have

    def predict(self, texts: Texts) -> list[list[ScoredWord]]:
        """Language-model predictor: the log-probabilities of the words and sentence ends of each text.

        `texts` is one text (str), a list of texts, a list of sentences (lists of words), or the `Path` of a file. For a
        file, the result has a list for each sentence."""
        if not isinstance(texts, os.PathLike):
            return [[*self.scored_words(coded, text)] for coded, text in self._texts(texts)]
        result = []
        for coded, text in self.stream(Path(texts)):
            words, begins = [*self.scored_words(coded, text)], [0, *coded.ends.tolist()]
            result += [words[begin:end] for begin, end in zip(begins[:-1], begins[1:], strict=True)]
        return result

    def nbest(self, texts: Texts, count: int = 10) -> list[list[NextWord]]:
        """Language-model predictor: the `count` most probable next words after each text, see `next_words`."""
        if isinstance(texts, os.PathLike):
            raise UserError(f"{texts}: the next words of a language model are predicted after texts, not after a file")
        return [self.next_words(text, count) for text in _listed(texts)]

    def marginals(self, texts: Texts) -> NoReturn:
        """Language-model predictor: raise an error, because a language model has no hidden variables."""
        raise UserError(
            "a language model has no marginals, the words of a text are given; predict(texts) tells their "
            "log-probabilities, distribution(context) the probability of every next word"
        )

    def evaluate(self, source: Texts) -> dict[str, float]:
        """Language-model predictor: the perplexity of texts, and the counts of sentences and words.

        `perplexity` is computed over the words in the vocabulary, `perplexity_open` over all words. `source` is a list
        of texts, a list of sentences (lists of words), or the path of a file (plain or gzipped)."""
        score, sentences = Perplexity(), 0
        blocks = self.stream(Path(source)) if isinstance(source, str | os.PathLike) else self._texts(source)
        for coded, text in blocks:
            score.add(self.log_probabilities(text), text.known[text.targets])
            sentences += len(coded.ends)
        figures = score.result()
        return figures | {"sentences": sentences, "tokens": figures["targets"] + figures["unknown"]}

    # --- log-probabilities of texts

    def encode(self, sentences: Iterable[Sequence[str]], source: str = "text") -> EncodedText:
        """Language-model predictor: encode sentences (lists of words) in the vocabulary of the model."""
        return code_pieces(source, ((list(words), True) for words in sentences), self.reading).text(self.vocabulary)

    def stream(self, source: Path | BinaryIO) -> Iterator[tuple[ProvisionalText, EncodedText]]:
        """Language-model predictor: read a file (plain or gzipped) or a pipe in blocks of sentences.

        Yields each block in two forms: with its original words (`ProvisionalText`), and in the codes of the vocabulary
        (`EncodedText`), where `<unk>` replaces unknown words."""
        blocks = sentences_of_file if isinstance(source, os.PathLike) else sentences_of_stream
        for coded in blocks(source, self.reading):
            yield coded, coded.text(self.vocabulary)

    def log_probabilities(self, text: EncodedText) -> np.ndarray:
        """Language-model predictor: the natural log-probability of every word and sentence end of a text (float64)."""
        if text.vocabulary is not self.vocabulary and text.vocabulary != self.vocabulary:
            raise UserError(f"{text.source}: its words are coded for another model, expected the codes of this one")
        node, entry = self.trie.locate(text)
        return self.scores[entry] - self.log_z[node]

    def scored_words(self, coded: ProvisionalText, text: EncodedText) -> Iterator[ScoredWord]:
        """Language-model predictor: the words of a text with log-probabilities; `</s>` follows each sentence.

        `coded` is the text with its original words. `text` is the same text in the codes of the vocabulary, with
        `<unk>` for unknown words."""
        words = [END, *coded.words]
        values, known = self.log_probabilities(text).tolist(), text.known[text.targets].tolist()
        for code, value, is_known in zip(coded.codes.tolist(), values, known, strict=True):
            yield ScoredWord(words[code], value, is_known)

    def _texts(self, texts: str | Iterable[str | Sequence[str]]) -> Iterator[tuple[ProvisionalText, EncodedText]]:
        """Language-model predictor: read texts; yields each text with its original words, and encoded with `<unk>`."""
        for text in _listed(texts):
            coded = code_pieces("text", self._sentences(text), self.reading)
            yield coded, coded.text(self.vocabulary)

    def _sentences(self, text: str | Sequence[str]) -> Iterable[tuple[list[str], bool]]:
        """Language-model predictor: the sentences of one text, in pieces.

        Each piece is a pair: a list of tokens, and whether the sentence ends after these tokens."""
        if isinstance(text, str):
            return sentences_of([(line, True) for line in text.split("\n")], self.reading)
        if isinstance(text, Sequence) and all(isinstance(word, str) for word in text):
            return [(list(text), True)]
        raise UserError(f"{_EXPECTED}, got {text!r:.60}")

    # --- next words

    def distribution(self, context: str | Sequence[str]) -> np.ndarray:
        """Language-model predictor: the probability of every vocabulary word after a context (float64 [words])."""
        return self._after(self.trie.path(self._codes(context))[-1])

    def next_words(self, context: str | Sequence[str], count: int = 10) -> list[NextWord]:
        """Language-model predictor: the `count` most probable next words after a context, most probable first.

        Each word comes with what each suffix of the context adds to its score. If the context begins with `<s>`, it is
        the beginning of a sentence."""
        if type(count) is not int or count < 1:
            raise UserError(f"the {count} most probable words were requested, expected a number from 1 on")
        path = self.trie.path(self._codes(context))
        probabilities = self._after(path[-1])
        best = np.argsort(-probabilities, kind="stable")[:count].tolist()
        name = self.vocabulary.name
        return [NextWord(name(word), float(probabilities[word]), tuple(self._parts(path, word))) for word in best]

    def sample(
        self, count: int, seed: int = 0, temperature: float = 1.0, start: str | Sequence[str] = (),
        longest: int = LONGEST,
    ) -> Iterator[list[str]]:  # fmt: skip
        """Language-model predictor: draw `count` random sentences that begin with the words `start`.

        A sentence has at most `longest` words. At temperature t, a word with probability p is drawn with a probability
        proportional to p^(1/t)."""
        if not 0 < temperature < np.inf:
            raise UserError(f"the temperature is {temperature}, expected a positive number")
        generator, end = np.random.default_rng(seed), self.vocabulary.end
        sampler, prefix = Sampler(self.trie, self.scores, temperature), self._codes(start, opens=True)
        for _ in range(count):
            sentence = list(prefix)
            while len(sentence) <= longest and sentence[-1] != end:
                sentence.append(sampler.draw(sentence[-self.trie.order :], generator))
            yield [self.vocabulary.name(code) for code in sentence[1:] if code != end]

    def contexts(self) -> Iterator[Context]:
        """Language-model predictor: the contexts with a nonzero weight, short contexts first."""
        name, bounds = self.vocabulary.name, self.trie.starts.tolist()
        for node in range(self.trie.nodes):
            begin, end = bounds[node : node + 2]
            living = begin + np.flatnonzero(self.weights[begin:end])
            if len(living):
                words = map(name, self.trie.entry_word[living].tolist())
                weights = dict(zip(words, self.increments[living].tolist(), strict=True))
                yield Context(tuple(map(name, self.trie.context(node))), weights)

    def unknown_words(self, context: str | Sequence[str]) -> list[str]:
        """Language-model predictor: the words of a context that are outside the vocabulary and count as `<unk>`."""
        return [word for word in self._words(context)[1] if word not in self.vocabulary.codes]

    def _words(self, context: str | Sequence[str], opens: bool = False) -> tuple[bool, list[str]]:
        """Language-model predictor: whether a context is the beginning of a sentence, and the words of the context.

        A sentence begins after the last mark `<s>` or `</s>` in the context. Words before this mark are left out. If
        there is no mark, `opens` says whether the context is the beginning of a sentence."""
        if not isinstance(context, Iterable):
            raise UserError(f"{_EXPECTED}, got {context!r:.60}")
        tokens = self.reading.split(context) if isinstance(context, str) else list(context)
        marks = [place for place, token in enumerate(tokens) if token in (START, END)]
        if marks:
            opens, tokens = True, tokens[marks[-1] + 1 :]
        opening = self.reading.opening(tokens) if opens else 0
        return opens, [self.reading.word(token, k >= opening) for k, token in enumerate(tokens)]

    def _codes(self, context: str | Sequence[str], opens: bool = False) -> list[int]:
        """Language-model predictor: the codes of the words of a context.

        If the context is the beginning of a sentence, the code of `<s>` comes first. `opens` decides this if the
        context contains neither `<s>` nor `</s>`."""
        opens, words = self._words(context, opens)
        codes, unknown = self.vocabulary.codes, self.vocabulary.unknown
        return [*([self.vocabulary.start] if opens else []), *(codes.get(word, unknown) for word in words)]

    def _after(self, node: int) -> np.ndarray:
        """Language-model predictor: the probability of every word after a trie node's context (float64 [words])."""
        return np.exp(self.trie.after(node, self.scores) - self.log_z[node])

    def _parts(self, path: Sequence[int], word: int) -> Iterator[Part]:
        """Language-model predictor: yield what each suffix of a context adds to the score of a word.

        `path` lists the trie nodes of the suffixes, from the empty suffix to the longest known one. Suffixes without a
        weight for the word are left out."""
        for node in path:
            entry = self.trie.entry(node, word)
            if node == 0 or entry >= 0:
                context = map(self.vocabulary.name, self.trie.context(node))
                yield Part(tuple(context), float(self.increments[entry]))


def _listed(texts: str | Iterable[str | Sequence[str]]) -> Iterable[str | Sequence[str]]:
    """Language-model predictor: the given texts; a single string becomes a list of one text.

    Anything else that cannot be iterated over is an error."""
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Iterable):
        raise UserError(f"{_EXPECTED}, got {texts!r:.60}")
    return texts
