"""Language models of artifact format 2, written by an earlier version, predict as they did then."""

import json
from pathlib import Path

import pytest

from structsparse import load

FORMAT_2 = Path(__file__).parents[2] / "data" / "format_2"


@pytest.mark.parametrize("name", ["lm", "lm_base"])  # the second with a base, alpha, and classes of words
def test_an_earlier_language_model_predicts_the_same(name):
    model, expected = load(FORMAT_2 / name), json.loads((FORMAT_2 / f"{name}.json").read_text())
    for words, values in zip(model.predict(expected["texts"]), expected["log_probabilities"], strict=True):
        assert [word.log_probability for word in words] == pytest.approx(values, abs=1e-5)
    best = model.next_words(expected["next_words"]["context"], 3)
    words = [[word.word, pytest.approx(word.probability, abs=1e-5)] for word in best]
    assert words == expected["next_words"]["words"]
    assert list(model.sample(2, seed=3)) == expected["sample"]
