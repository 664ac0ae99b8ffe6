"""Classifiers of artifact format 2, written by an earlier version, predict as they did then."""

import json
from pathlib import Path

import numpy as np
import pytest

from structsparse import load

FORMAT_2 = Path(__file__).parents[2] / "data" / "format_2"


@pytest.mark.parametrize(
    "name", ["textcat", "textcat_extra", "textcat_numbers"]
)  # two classes; tf-idf, groups; numbers
def test_an_earlier_classifier_predicts_the_same(name):
    model, expected = load(FORMAT_2 / name), json.loads((FORMAT_2 / f"{name}.json").read_text())
    texts = expected["texts"]
    np.testing.assert_allclose(model.scores(model.read(texts)), expected["scores"], atol=1e-4)
    if model.classes is None:
        assert model.predict(texts) == pytest.approx(expected["predictions"], abs=1e-5)
        return
    assert model.predict(texts) == expected["predictions"]
    for marginals, values in zip(model.marginals(texts), expected["probabilities"], strict=True):
        assert [*marginals.values()] == pytest.approx(values, abs=1e-5)
    assert [ranked[0].label for ranked in model.nbest(texts, 1)] == expected["predictions"]
