"""Random draws from language models against their probabilities."""

import math

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.text import encode
from structsparse.corpora.text_reading import END, START
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.tasks.lm.sampling import Sampler
from tests.support.language_models import SIGNS, model_of


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("signs", SIGNS)
def test_frequencies_of_drawn_words_match_their_probabilities(signs, temperature):
    model = model_of(2, signs=signs, size=2.0)
    generator = np.random.default_rng(0)
    sampler = Sampler(model.trie, model.scores, temperature)
    for context in ([], [model.vocabulary.start], [0, 1, 0]):
        names = [[*model.vocabulary.words, START][code] for code in context]
        expected = model.distribution(names) ** (1 / temperature)
        expected /= expected.sum()
        draws = 4000
        counts = np.bincount([sampler.draw(context, generator) for _ in range(draws)], minlength=len(expected))
        spread = np.sqrt(draws * expected * (1 - expected))
        assert (np.abs(counts - draws * expected) <= 4.5 * spread + 1).all()


def test_after_many_rejections_the_draw_is_over_all_words():
    """After `a`, the word that is likely elsewhere is less likely than all others."""
    tree = ContextTree.build(encode([["a", "b"]] * 3 + [["c"]]), 2)
    model = LanguageModel.of(tree, np.zeros(tree.entries))
    words, base = model.vocabulary.codes, np.full(len(model.vocabulary), -60.0)
    base[words["b"]] = 0.0
    weights = np.where((tree.entry_node > 0) & (tree.entry_word == words["b"]), -80.0, 0.0)
    model = LanguageModel.of(tree, weights, base=base)
    sampler, generator = Sampler(model.trie, model.scores, 1.0), np.random.default_rng(0)
    drawn = [sampler.draw([words["a"]], generator) for _ in range(60)]
    assert {*drawn} == {*words.values()} - {words["b"]}


def test_very_low_temperatures_draw_the_most_probable_words():
    model = model_of(2)
    best = model.next_words("w0 w1", 1)[0].word
    for sentence in model.sample(5, temperature=1e-5, start="w0 w1"):
        assert [*sentence, END][2] == best


def test_sentences_begin_with_the_given_words():
    model = model_of(2)
    drawn = list(model.sample(20, seed=3, start="w1 w0"))
    assert all(sentence[:2] == ["w1", "w0"] for sentence in drawn)
    assert not any({START, END} & {*sentence} for sentence in drawn)
    assert drawn == list(model.sample(20, seed=3, start=["<s>", "w1", "w0"]))
    assert drawn != list(model.sample(20, seed=4, start="w1 w0"))
    assert len({tuple(sentence) for sentence in drawn}) > 5


def test_words_are_drawn_given_the_full_context():
    """The word three places before decides."""
    text = encode([["a", "x", "y", "b"], ["c", "x", "y", "d"]] * 3)
    tree = ContextTree.build(text, 4)
    model = LanguageModel.of(tree, 20.0 * (tree.depth[tree.entry_node] == 3))
    drawn = [list(model.sample(20, start=start)) for start in ("a x y", "c x y")]
    assert drawn == [[["a", "x", "y", "b"]] * 20, [["c", "x", "y", "d"]] * 20]


def test_sentences_without_end_are_cut():
    model = model_of(2, base=True)
    model.base[model.vocabulary.end] = -1e4
    assert [len(sentence) for sentence in model.sample(2, longest=17)] == [17, 17]


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperatures_must_be_positive(temperature):
    with pytest.raises(UserError, match="temperature is"):
        next(model_of().sample(1, temperature=temperature))
