"""Topics of documents by latent Dirichlet allocation (Blei et al. 2003), by the Gibbs sampler of tomotopy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from structsparse.base import cache
from structsparse.base.errors import UserError

NAMED = 3  # maximum number of words in the name of a topic


@dataclass(frozen=True)
class Topics:
    """Topics of documents: the most probable words of each topic, in order of probability."""

    words: tuple[str, ...]  # words[c] is the word with the code c
    codes: np.ndarray  # int32 array: codes of the most probable words, topic after topic
    sizes: np.ndarray  # int64 array: how many entries of `codes` each topic has

    def name(self, topic: int) -> str:
        """The name of a topic, such as `topic 17: space orbit launch ...`."""
        begin = int(self.sizes[:topic].sum())
        first = self.codes[begin : begin + min(NAMED, int(self.sizes[topic]))]
        rest = " ..." if self.sizes[topic] > NAMED else ""
        return f"topic {topic}: " + " ".join(self.words[c] for c in first.tolist()) + rest


def lda(
    documents, topics: int = 1000, top: int = 10, iterations: int = 100, seed: int = 0, megabytes: int = 0
) -> Topics:
    """Find topics of documents by latent Dirichlet allocation, each with its `top` most probable words.

    A topic has fewer words if the sampler drew fewer words for the topic. The same seed gives the same topics."""
    options = {"topics": topics, "top": top, "iterations": iterations}
    for name, number in options.items():
        if type(number) is not int or number < 1:
            raise UserError(f"groups.{name} is {number!r}, expected a whole number of at least 1")
    if type(seed) is not int or seed < 0:
        raise UserError(f"groups.topic_seed is {seed!r}, expected a whole number of at least 0")
    tomotopy = _tomotopy()
    about = ["lda", tomotopy.__version__, topics, top, iterations, seed]
    key = cache.key(about, [documents.tokens, documents.offsets], [Path(__file__)])
    make = partial(_sampled, tomotopy, documents, topics, top, iterations, seed)
    arrays = cache.load_or_make(key, make, megabytes)
    return Topics(tuple(documents.words), arrays["codes"], arrays["sizes"])


def _tomotopy():
    """Topics: import the package tomotopy; the error for a missing package says how to install it."""
    try:
        import tomotopy
    except ImportError as error:
        raise UserError("topics need the package tomotopy: pip install tomotopy") from error
    return tomotopy


def _sampled(tomotopy, documents, topics: int, top: int, iterations: int, seed: int) -> dict[str, np.ndarray]:
    """Train a topic model; returns the codes of the top words, topic after topic, and the number of top words by topic.

    Each word is passed to tomotopy as the digits of its code. Thus no word is empty or split."""
    model = tomotopy.LDAModel(k=topics, seed=seed)
    model.optim_interval = 0  # keep equal topic priors; with fitted priors, half of 1000 topics are empty
    digits = [str(code) for code in range(len(documents.words))]
    offsets = documents.offsets.tolist()
    for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
        if end > begin:
            model.add_doc([digits[code] for code in documents.tokens[begin:end].tolist()])
    if not len(model.docs):
        raise UserError("topics: the training documents have no words")
    model.train(iterations, workers=1)  # more workers make the result depend on timing
    codes, sizes = [], []
    vocabulary = np.array([int(word) for word in model.used_vocabs])
    least = model.eta * 1.5  # counts include the prior eta; a word never drawn for the topic has the count eta
    for topic in range(model.k):
        share = np.asarray(model.get_topic_word_dist(topic, normalize=False))
        order = np.lexsort((vocabulary, -share))[:top]
        order = order[share[order] > least]
        codes.append(vocabulary[order])
        sizes.append(len(order))
    return {"codes": np.concatenate(codes).astype(np.int32), "sizes": np.array(sizes, np.int64)}
