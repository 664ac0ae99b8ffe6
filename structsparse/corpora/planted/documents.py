"""Planted documents: drawn from a seeded model in which only some groups of words decide the label.

- The words of a group share a stem. Each sentence is about one group. Its words are from this group, from any group, or
  common words.
- Some groups are deciding: each of them indicates a class. All other groups are silent: their words are independent of
  the label.
- Some sentences are about deciding groups. Most of these sentences indicate the class of their document; the others
  indicate other classes.
- For numeric labels, a deciding group indicates a sign. A label is the sum of the signs (1 or -1) that the sentences of
  the document indicate, plus noise.

Each word is rare. A learner that knows the groups therefore needs fewer documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentSplits, tokenize

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
COMMON = 100  # number of words that belong to no group
DECIDING_SHARE = 0.4  # share of the sentences that are about deciding groups (groups that indicate a class)
LOUD = 0.95  # probability that a sentence about a deciding group indicates the class of its document
OF_GROUP, OF_ANY = 0.4, 0.1  # shares of the words of a sentence: from its group, from any group; the rest are common
SENTENCES, LENGTH = 8, 8  # mean number of sentences per document; mean number of words per sentence
EXPONENT = 0.5  # the frequency of the k-th word of a group is proportional to k ** -EXPONENT
NOISE = 0.5  # standard deviation of the noise of numeric labels


def planted_documents(
    seed: int, train: int, dev: int, test: int, classes: int, groups: int, size: int, deciding: int
) -> DocumentSplits:
    """Draw planted documents (data=planted_documents) for train, dev and test.

    There are `groups` word groups of `size` words each. `deciding` is the number of groups that indicate each class.
    With classes=0, labels are numbers."""
    _check(classes, groups, size, deciding)
    words_seed, topics_seed, texts_seed, numbers_seed = np.random.SeedSequence(seed).spawn(4)
    stems, words = _words(np.random.default_rng(words_seed), groups, size)
    documents = train + dev + test
    rng = np.random.default_rng(topics_seed)
    kinds = max(classes, 2)  # number of classes; for numeric labels, 2 (one for each sign)
    decides = rng.permutation(groups)[: kinds * deciding].reshape(kinds, deciding)  # groups that indicate each class
    sizes = 1 + rng.poisson(SENTENCES - 1, documents)  # number of sentences of each document
    kind, topic, speaks = _topics(rng, sizes, decides, groups, classes == 0)
    if classes:
        labels, names = kind, tuple(f"class{k}" for k in range(classes))
    else:
        owner, effect = np.repeat(np.arange(documents), sizes), np.where(speaks == 0, -1.0, speaks)
        noise = np.random.default_rng(numbers_seed).normal(0, NOISE, documents)
        labels, names = np.bincount(owner, np.where(speaks < 0, 0.0, effect), documents) + noise, None
    texts, sentences = _texts(np.random.default_rng(texts_seed), sizes, topic, words, size)
    source = f"planted documents (seed {seed})"
    corpus = tokenize([f"{source}:{k + 1}" for k in range(documents)], texts, labels, names)
    corpus = replace(corpus, sentence_offsets=sentences)
    bounds = np.cumsum([0, train, dev, test])
    parts = [corpus.select(np.arange(*bounds[k : k + 2])) for k in range(3)]
    members = {
        f"{stem}-": tuple(sorted(words[COMMON + k * size : COMMON + (k + 1) * size])) for k, stem in enumerate(stems)
    }
    truth = tuple(f"{stems[k]}-" for k in np.sort(decides.ravel()).tolist())
    return DocumentSplits("planted_documents", *parts, truth=truth, groups=members)


def _check(classes: int, groups: int, size: int, deciding: int) -> None:
    """Refuse impossible options of planted documents."""
    if classes < 0 or classes == 1:
        raise UserError(f"data.classes is {classes}, expected at least 2, or 0 for numbers")
    most = (len(CONSONANTS) * len(VOWELS)) ** 2
    if not 1 <= groups <= most:
        raise UserError(f"data.groups is {groups}, expected from 1 to {most:,}")
    endings = len(VOWELS) * len(CONSONANTS)
    if not 1 <= size <= endings:
        raise UserError(f"data.size is {size}, expected from 1 to {endings} words in a group")
    if deciding < 1 or deciding * max(classes, 2) >= groups:
        raise UserError(
            f"data.deciding is {deciding}, expected at least 1, and for {max(classes, 2)} classes less than "
            f"data.groups={groups} in all"
        )


def _words(rng: np.random.Generator, groups: int, size: int) -> tuple[list[str], list[str]]:
    """Planted documents: make the stems of the word groups, and the list of all words.

    In the list, the common words come first, then the words of each group."""
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    endings = [v + c for v in VOWELS for c in CONSONANTS]
    stems = [syllables[k // len(syllables)] + syllables[k % len(syllables)]
             for k in rng.permutation(len(syllables) ** 2)[:groups]]  # fmt: skip
    words = [f"{c}{v}{d}" for c in CONSONANTS for v in VOWELS for d in CONSONANTS]
    words = [words[k] for k in rng.permutation(len(words))[:COMMON]]  # three letters each; words of groups have six
    for stem in stems:
        words += [stem + endings[k] for k in rng.permutation(len(endings))[:size]]
    return stems, words


def _topics(
    rng: np.random.Generator, sizes: np.ndarray, decides: np.ndarray, groups: int, mixed: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Planted documents: draw the class of each document, and the word group of each sentence.

    The third result is the class that each sentence indicates, -1 if its group is silent. `sizes` has the number of
    sentences of each document, `decides` the groups that indicate each class. With `mixed` (for numeric labels), the
    sentences of a document indicate classes that are drawn independently."""
    kinds, deciding = decides.shape
    silent = np.setdiff1d(np.arange(groups), decides)
    kind = rng.integers(kinds, size=len(sizes))
    sentences = int(sizes.sum())
    main = rng.integers(kinds, size=sentences) if mixed else np.repeat(kind, sizes)
    other = (main + 1 + rng.integers(kinds - 1, size=sentences)) % kinds
    decided = np.where(rng.random(sentences) < LOUD, main, other)
    loud = decides[decided, rng.integers(deciding, size=sentences)]
    quiet = silent[rng.integers(len(silent), size=sentences)]
    speaks = rng.random(sentences) < DECIDING_SHARE
    return kind, np.where(speaks, loud, quiet), np.where(speaks, decided, -1)


def _texts(
    rng: np.random.Generator, sizes: np.ndarray, topic: np.ndarray, words: Sequence[str], size: int
) -> tuple[list[str], np.ndarray]:
    """Planted documents: draw the texts of the documents, and the index of the first token of each sentence.

    `sizes` has the number of sentences of each document, `topic` the word group of each sentence. Each group has `size`
    words."""
    lengths = 1 + rng.poisson(LENGTH - 1, len(topic))  # number of words of each sentence
    about, tokens = np.repeat(topic, lengths), int(lengths.sum())
    share = rng.random(tokens)
    group = np.where(share < OF_GROUP, about, rng.integers((len(words) - COMMON) // size, size=tokens))
    member = _ranked(rng, size, tokens)
    code = np.where(share < OF_GROUP + OF_ANY, COMMON + group * size + member, _ranked(rng, COMMON, tokens))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    spellings = [words[k] for k in code.tolist()]
    for k in offsets[:-1].tolist():
        spellings[k] = spellings[k].capitalize()
    ends = offsets.tolist()
    sentences = [" ".join(spellings[a:b]) + "." for a, b in zip(ends[:-1], ends[1:], strict=True)]
    bounds = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return [" ".join(sentences[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True)], offsets


def _ranked(rng: np.random.Generator, words: int, draws: int) -> np.ndarray:
    """Draw random word indices for planted documents; smaller indices are more frequent (int64 array)."""
    mass = np.cumsum(np.arange(1, words + 1) ** -EXPONENT)
    return np.minimum(np.searchsorted(mass, rng.random(draws) * mass[-1], side="right"), words - 1)
