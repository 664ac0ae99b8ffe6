"""A parser of artifact format 2, written by an earlier version, predicts as it did then."""

import json
from pathlib import Path

import numpy as np
import pytest

from structsparse import load

FORMAT_2 = Path(__file__).parents[2] / "data" / "format_2"


def test_an_earlier_parser_predicts_the_same():
    model, expected = load(FORMAT_2 / "parsing"), json.loads((FORMAT_2 / "parsing.json").read_text())
    sentences = expected["sentences"]
    assert list(model.columns) == expected["columns"]
    trees = model.predict(sentences)
    assert [tree.heads for tree in trees] == expected["heads"]
    assert [tree.relations for tree in trees] == expected["relations"]
    for tree, arcs, reference in zip(trees, model.marginals(sentences), expected["probabilities"], strict=True):
        np.testing.assert_allclose(arcs[range(len(arcs)), tree.heads], reference, atol=2e-4)
    ranked = [[[best.tree.heads, best.score] for best in of] for of in model.nbest(sentences, 2)]
    for best, reference in zip(sum(ranked, []), sum(expected["nbest"], []), strict=True):
        assert best == [reference[0], pytest.approx(reference[1], abs=2e-3)]
