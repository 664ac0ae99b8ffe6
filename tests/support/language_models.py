"""Random language models, and the same by their definition, for the tests of tasks/lm."""

import math
import random

import numpy as np

from structsparse.corpora.text import encode
from structsparse.corpora.text_reading import END, START, UNKNOWN
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.predictor import LanguageModel

SIGNS = {"positive": (0.0, 1.0), "signed": (-0.7, 0.7)}


def sentences(seed: int, count: int = 40, words: int = 9) -> list[list[str]]:
    """Random sentences with frequent and rare words and common beginnings."""
    draw = random.Random(seed)
    vocabulary = [f"w{k}" for k in range(words)]
    weights = [1 / (k + 1) for k in range(words)]
    return [
        [*["w0", "w1"][: draw.randrange(3)], *draw.choices(vocabulary, weights, k=draw.randrange(1, 7))]
        for _ in range(count)
    ]


def model_of(seed=0, order=4, alpha=0.9, base=True, signs="positive", dead=0.4, size=1.0, count=40) -> LanguageModel:
    """A language model with random weights for all contexts of a small text; a share `dead` of them is zero."""
    generator = np.random.default_rng(seed)
    text = encode(sentences(seed, count))
    tree = ContextTree.build(text, order)
    low, high = SIGNS[signs]
    table = size * generator.uniform(low, high, tree.entries) * (generator.random(tree.entries) >= dead)
    start = generator.normal(size=len(text.vocabulary)) if base else None
    return LanguageModel.of(tree, table, alpha, start)


class DenseModel:
    """A language model by its definition: weights by context and word, and sums over all words."""

    def __init__(self, model: LanguageModel):
        self.words = model.vocabulary.words
        self.base = dict(zip(self.words, np.zeros(len(self.words)) if model.base is None else model.base, strict=True))
        self.weights = {}
        names = [*self.words, START]
        for node in range(model.trie.nodes):
            context = tuple(names[code] for code in model.trie.context(node))
            for entry in range(*model.trie.starts[node : node + 2]):
                word = names[model.trie.entry_word[entry]]
                self.weights[context, word] = float(model.weights[entry]) * model.alpha ** len(context)

    def scores(self, before: list[str]) -> dict[str, float]:
        """The score of every word after these."""
        suffixes = [tuple(before[k:]) for k in range(len(before) + 1)]
        return {word: self.base[word] + sum(self.weights.get((c, word), 0.0) for c in suffixes) for word in self.words}

    def probabilities(self, before: list[str]) -> dict[str, float]:
        """The probability of every word after these."""
        scores = self.scores(before)
        most = max(scores.values())
        z = math.fsum(math.exp(score - most) for score in scores.values())
        return {word: math.exp(score - most) / z for word, score in scores.items()}

    def log_probabilities(self, sentence: list[str]) -> list[float]:
        """The log-probabilities of the words of a sentence and of its end."""
        known = [word if word in self.words else UNKNOWN for word in sentence]
        before = [START, *known]
        return [math.log(self.probabilities(before[: k + 1])[word]) for k, word in enumerate([*known, END])]
