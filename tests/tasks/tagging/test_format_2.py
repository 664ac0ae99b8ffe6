"""Taggers of artifact format 2, written by an earlier version, predict as they did then."""

import json
from pathlib import Path

import numpy as np
import pytest

from structsparse import load

FORMAT_2 = Path(__file__).parents[2] / "data" / "format_2"


@pytest.mark.parametrize("name", ["tagging", "tagging_edges"])  # the second with features of edges, 6 bits, short keys
def test_an_earlier_tagger_predicts_the_same(name):
    model, expected = load(FORMAT_2 / name), json.loads((FORMAT_2 / f"{name}.json").read_text())
    assert model.columns == tuple(expected["columns"])
    assert model.predict(expected["sentences"]) == expected["tags"]
    for marginals, reference in zip(model.marginals(expected["sentences"]), expected["marginals"], strict=True):
        np.testing.assert_allclose(marginals, reference, atol=2e-4)
    if "nbest" in expected:
        ranked = [[[best.tags, best.score] for best in of] for of in model.nbest(expected["sentences"], 2)]
        for best, reference in zip(sum(ranked, []), sum(expected["nbest"], []), strict=True):
            assert best == [reference[0], pytest.approx(reference[1], abs=2e-3)]
