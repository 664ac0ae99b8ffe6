"""Topics of documents by latent Dirichlet allocation (Blei et al. 2003), with collapsed Gibbs sampling by tomotopy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from structsparse.base import cache
from structsparse.base.errors import UserError

SOME = 3  # words that the name of a topic shows


@dataclass(frozen=True)
class Topics:
    """The most probable words of each topic, the most probable first."""

    words: tuple[str, ...]
    codes: np.ndarray  # int32, topic after topic
    sizes: np.ndarray  # int64 [topics]: fewer than asked for where a topic has no more words

    def name(self, topic: int) -> str:
        """`topic 17: space orbit launch ...`."""
        begin = int(self.sizes[:topic].sum())
        some = self.codes[begin : begin + min(SOME, int(self.sizes[topic]))]
        rest = " ..." if self.sizes[topic] > SOME else ""
        return f"topic {topic}: " + " ".join(self.words[c] for c in some.tolist()) + rest


def lda(
    documents, topics: int = 1000, top: int = 10, iterations: int = 100, seed: int = 0, megabytes: int = 0
) -> Topics:
    """The topics of these documents after so many sweeps, and of each the `top` most probable words that it was drawn
    for. The same seed gives the same topics.

    Up to so many megabytes of results are kept for the next run that asks for the same."""
    given = {"topics": topics, "top": top, "iterations": iterations}
    for name, number in given.items():
        if type(number) is not int or number < 1:
            raise UserError(f"groups.{name} is {number!r}, expected a whole number of at least 1")
    if type(seed) is not int or seed < 0:
        raise UserError(f"groups.topic_seed is {seed!r}, expected a whole number of at least 0")
    tomotopy = _tomotopy()
    about = ["lda", tomotopy.__version__, topics, top, iterations, seed]
    key = cache.key(about, [documents.tokens, documents.offsets], [Path(__file__)])
    found = cache.load_or_make(key, lambda: _drawn(tomotopy, documents, topics, top, iterations, seed), megabytes)
    return Topics(tuple(documents.words), found["codes"], found["sizes"])


def _tomotopy():
    try:
        import tomotopy
    except ImportError as error:
        raise UserError("topics need the package tomotopy: pip install 'structsparse[text]'") from error
    return tomotopy


def _drawn(tomotopy, documents, topics: int, top: int, iterations: int, seed: int) -> dict[str, np.ndarray]:
    """Words go in as the digits of their codes, so that none is an empty text or one that tomotopy takes apart."""
    model = tomotopy.LDAModel(k=topics, seed=seed)
    model.optim_interval = 0  # priors stay alike for all topics; fitted, they would leave half of a thousand empty
    digits = [str(code) for code in range(len(documents.words))]
    offsets = documents.offsets.tolist()
    for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
        if end > begin:
            model.add_doc([digits[code] for code in documents.tokens[begin:end].tolist()])
    if not len(model.docs):
        raise UserError("topics: the documents of training have no words")
    model.train(iterations, workers=1)  # several would draw by who comes first
    codes, sizes = [], []
    vocabulary = np.array([int(word) for word in model.used_vocabs])
    least = model.eta * 1.5  # of a word that was never drawn for the topic the count is eta
    for topic in range(model.k):
        share = np.asarray(model.get_topic_word_dist(topic, normalize=False))
        order = np.lexsort((vocabulary, -share))[:top]
        order = order[share[order] > least]
        codes.append(vocabulary[order])
        sizes.append(len(order))
    return {"codes": np.concatenate(codes).astype(np.int32), "sizes": np.array(sizes, np.int64)}
