"""The data of word vectors: a vocabulary, associations of words with contexts as a sparse matrix, batches of words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from structsparse.base.cache import cache_folder
from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentSplits
from structsparse.corpora.known.running_text import RunningText
from structsparse.corpora.known.sentiment import sentiment_at_hand
from structsparse.corpora.known.texts import TextSplits
from structsparse.corpora.known.word_sets import Analogies, WordPairs, known_analogies, known_pairs
from structsparse.corpora.text import ProvisionalText
from structsparse.corpora.text_reading import UNKNOWN
from structsparse.features.cooccurrences import Cooccurrences, Window, associations, count
from structsparse.features.cooccurrences_on_disk import count_on_disk
from structsparse.kernels.features.cooccurrences import END, SKIPPED
from structsparse.losses.reconstruction import SparseRows
from structsparse.training.batches import Progress

OPTIONS = {"min_count", "unknown", "window", "weighting", "association", "smoothing", "shift", "contexts", "memory"}
TRAIN = "train"  # name of the part of the data that word vectors are learnt from
WHOLE = 4096  # words in a batch of a pass over all words


@dataclass(frozen=True, eq=False)
class WordData:
    """The data of word vectors: words, and their associations with contexts (float32 [words, contexts])."""

    name: str
    words: tuple[str, ...]  # falling frequency; the contexts are the first of them
    frequency: np.ndarray  # int64 [words]: how often each word occurs
    matrix: sparse.csr_array
    counts: np.ndarray | None  # float32 [entries]: how often word and context occur together; None: not needed
    lines: tuple[str, ...] = ()  # for the user, about what was read and counted
    planted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # words below each node of planted trees
    metric: str = "explained"  # name of the score by which models are compared; `similarity` where dev has pairs

    @property
    def items(self) -> int:
        """Data of word vectors: the number of words."""
        return len(self.words)

    @property
    def truth(self) -> tuple[str, ...]:
        """Data of word vectors: the names of planted nodes; groups of penalties are not compared with them by name."""
        return ()

    @cached_property
    def pairs(self) -> dict[str, list[WordPairs]]:
        """Data of word vectors: sets of pairs with scores of similarity for dev and test that share words."""
        known = {*self.words}
        return {part: [s for s in known_pairs(part) if _shared(s, known) > 2] for part in ("dev", "test")}

    @cached_property
    def analogies(self) -> Analogies | None:
        """Data of word vectors: the known questions of analogy; None if they are not on this machine."""
        return known_analogies()

    @cached_property
    def sentiment(self) -> DocumentSplits | None:
        """Data of word vectors: sentences with a sentiment; None if they are not on this machine."""
        return sentiment_at_hand()

    def describe(self) -> list[str]:
        """Console lines on the data of word vectors."""
        return [*self.lines]

    def batches(self, part: str, size: int | None, **sharing) -> WordBatches:
        """Data of word vectors: batches of `size` words; dev and test are one batch, which is evaluated as a whole."""
        return WordBatches(self, part, size if part == TRAIN else None, **sharing)

    def whole(self, part: str) -> WordBatches:
        """Data of word vectors: batches for one pass over all words."""
        return self.batches(part, WHOLE)

    def rows(self, words: np.ndarray) -> SparseRows:
        """Data of word vectors: the associations of some words, as tensors."""
        starts, ends = self.matrix.indptr[words], self.matrix.indptr[words + 1]
        sizes = (ends - starts).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        counts = None if self.counts is None else torch.from_numpy(self.counts[places])
        columns = torch.from_numpy(self.matrix.indices[places].astype(np.int64))
        return SparseRows(torch.from_numpy(self.matrix.data[places]), columns, torch.from_numpy(offsets), counts)


def _shared(pairs: WordPairs, known: set[str]) -> int:
    """Data of word vectors: how many pairs of a set have both words in the vocabulary."""
    return sum(a.lower() in known and b.lower() in known for a, b, _ in pairs.pairs)


class WordBatch:
    """A batch of words; for dev and test, the part that is evaluated. Lightning looks into dataclasses, not into this.

    - words: int64 [words], codes of the words
    - items: the number of words in the step
    - sentences: always empty; other tasks: sentence indices"""

    def __init__(self, part: str, words: Tensor, epoch: int, source: WordData) -> None:
        self.part, self.words, self.items, self.epoch, self.source = part, words, len(words), epoch, source
        self.sentences = torch.arange(0)

    @cached_property
    def rows(self) -> SparseRows:
        """Data of word vectors: the associations of the words, on their device."""
        rows = self.source.rows(self.words.cpu().numpy())
        return SparseRows(*(None if part is None else part.to(self.words.device) for part in rows))

    def to(self, device: torch.device | str) -> WordBatch:
        """Data of word vectors: the batch on a device; its associations are gathered on the CPU."""
        if self.words.device == torch.device(device):
            return self
        moved = WordBatch(self.part, self.words.to(device), self.epoch, self.source)
        moved.rows = SparseRows(*(None if part is None else part.to(device) for part in self.rows))
        return moved


class WordBatches(Progress):
    """Data loader of batches of words, in an order that depends only on the seed and the epoch."""

    def __init__(
        self, data: WordData, part: str, size: int | None, *, shuffle: bool = False, seed: int = 0, rank=0, world=1
    ) -> None:
        if world > 1:
            raise UserError(f"trainer.devices={world}: word vectors are trained on one device")
        if size is not None and size < 1:
            raise UserError(f"batch={size}: expected a number of words, at least 1, or null for all")
        self.data, self.part, self.shuffle, self.seed = data, part, shuffle, seed
        self.size = min(size or data.items, data.items)
        super().__init__()

    def __len__(self) -> int:
        """The number of batches of words in an epoch."""
        return -(-self.data.items // self.size)

    def __iter__(self) -> Iterator[WordBatch]:
        """The remaining batches of words in this epoch; if none remain, a new epoch begins."""
        if self.done >= len(self):
            self.done = 0
        words = self.data.items
        order = np.random.default_rng([self.seed, self.epoch]).permutation(words) if self.shuffle else np.arange(words)
        while self.done < len(self):
            chosen = order[self.done * self.size : (self.done + 1) * self.size]
            self.done += 1
            yield WordBatch(self.part, torch.from_numpy(chosen), self.epoch, self.data)


# --- from text to associations


def prepare(corpus: RunningText | TextSplits, options: Mapping) -> WordData:
    """Data of word vectors: count the co-occurrences of a text, and make the associations that are reconstructed."""
    text, planted = _text_of(corpus)
    codes, words, frequency = encoded(text, options["min_count"], options["unknown"])
    counted = _counted(codes, len(words), Window(options["window"], options["weighting"]), options["memory"])
    matrix = associations(counted, options["association"], options["smoothing"], options["shift"])
    if matrix.nnz == 0:
        raise UserError(f"{text.source}: no two words of the vocabulary occur together; give more text")
    counts = None
    if options["association"] == "log_count":
        counts = (counted.matrix.data / counted.scale).astype(np.float32)
    if options["contexts"] is not None:
        matrix, counts = _of_contexts(matrix, counts, options["contexts"])
    entries = counted.matrix.nnz
    lines = [
        *corpus.describe(),
        f"vocabulary: {len(words):,} words that occur at least {options['min_count']} times",
        f"co-occurrences: {entries:,} pairs, {entries / len(words) ** 2:.2%} of all",
    ]
    if len(words) <= options["window"]:
        lines.append(
            f"the vocabulary is no larger than features.window={options['window']}: nearly every word is a context of "
            "every other; lower features.window, or give more text"
        )
    data = WordData(corpus.name, words, frequency, matrix, counts, tuple(lines), planted)
    return data if not data.pairs["dev"] else _compared_by_similarity(data)


def _of_contexts(
    matrix: sparse.csr_array, counts: np.ndarray | None, most: int
) -> tuple[sparse.csr_array, np.ndarray | None]:
    """Data of word vectors: the associations, and counts if any, with the most frequent contexts."""
    if type(most) is not int or most < 1:
        raise UserError(f"features.contexts is {most}, expected a number of at least 1, or null for all words")
    if counts is not None:
        counts = sparse.csr_array((counts, matrix.indices, matrix.indptr), shape=matrix.shape)[:, :most].data
    return matrix[:, :most], counts


def _compared_by_similarity(data: WordData) -> WordData:
    """Data of word vectors: the same data, whose models are compared by the similarity of the pairs of dev."""
    return WordData(
        data.name, data.words, data.frequency, data.matrix, data.counts, data.lines, data.planted, "similarity"
    )


def _text_of(corpus: RunningText | TextSplits) -> tuple[ProvisionalText, Mapping[str, tuple[str, ...]]]:
    """Data of word vectors: the text that is counted, and planted nodes; of a language model's corpus, its train."""
    if isinstance(corpus, RunningText):
        return corpus.text, corpus.truth
    train = corpus.train
    vocabulary = train.vocabulary
    inside = train.codes[train.codes != vocabulary.start]
    codes = np.where(inside == vocabulary.end, 0, inside + 1).astype(np.int32)
    return ProvisionalText(train.source, vocabulary.words, codes), {}


def encoded(text: ProvisionalText, min_count: int, unknown: bool) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
    """Data of word vectors: the codes of a text by falling frequency, the words, and how often each occurs.

    Rarer words than `min_count` become the word <unk> or, if `unknown` is false, are not counted."""
    if type(min_count) is not int or min_count < 1:
        raise UserError(f"features.min_count is {min_count}, expected a number of at least 1")
    words = [*text.words] if UNKNOWN in text.words else [*text.words, UNKNOWN]
    frequency = np.bincount(text.codes, minlength=len(words) + 1)[1:]
    rest = words.index(UNKNOWN)
    rare = frequency < min_count
    rare[rest] = False
    if unknown:
        frequency[rest] += frequency[rare].sum()
    kept = np.flatnonzero(~rare & (frequency > 0)) if unknown else np.flatnonzero(frequency >= min_count)
    if len(kept) < 2:
        raise UserError(
            f"{text.source}: fewer than two words occur at least features.min_count={min_count} times; lower it, or "
            "give more text"
        )
    order = kept[np.argsort(-frequency[kept], kind="stable")]
    code = np.full(len(words), SKIPPED, np.int32)
    code[order] = np.arange(len(order), dtype=np.int32)
    if unknown:
        code[rare] = code[rest]
    codes = np.append(np.int32(END), code)[text.codes]
    return codes, tuple(words[k] for k in order.tolist()), frequency[order]


def _counted(codes: np.ndarray, words: int, window: Window, memory: int | None) -> Cooccurrences:
    """Data of word vectors: count in memory, or with a limit in megabytes in the cache folder of this text."""
    if memory is None:
        return count(codes, words, window)
    digest = blake2b(codes, digest_size=8).hexdigest()
    folder = cache_folder() / "cooccurrences" / f"{digest}-{words}-{window.size}-{window.weighting}"
    return count_on_disk(codes, words, window, memory, folder)


def checked_options(features: Mapping) -> Mapping:
    """Data of word vectors: the options of conf/features/embeddings.yaml; options of other tasks are refused."""
    if {*features} != OPTIONS:
        raise UserError("task=embeddings has windows and no templates: leave out features=... and filter=...")
    return features


def planted_words(data: WordData) -> Sequence[tuple[str, np.ndarray]]:
    """Data of word vectors: the nodes of planted trees, each with the codes of the words below it."""
    code = {word: k for k, word in enumerate(data.words)}
    return [(name, np.array([code[w] for w in words if w in code], np.int64)) for name, words in data.planted.items()]
