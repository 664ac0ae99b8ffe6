"""Perplexity."""

import math

import numpy as np
import pytest

from structsparse.tasks.lm.scores import Perplexity
from structsparse.training.scores import gain


def test_perplexity_accumulates_and_lower_is_better():
    draw = np.random.default_rng(0)
    losses, known = draw.random(100), draw.random(100) < 0.8
    score = Perplexity()
    for part in np.array_split(np.arange(100), 7):
        score.add(-losses[part], known[part])
    result = score.result()
    assert result["perplexity"] == pytest.approx(np.exp(losses[known].mean()))
    assert result["perplexity_open"] == pytest.approx(np.exp(losses.mean()))
    assert (result["targets"], result["unknown"]) == (known.sum(), 100 - known.sum())
    assert gain("dev/perplexity", 100.0) < gain("dev_perplexity", 90.0)
    assert gain("dev/f1", 0.9) > gain("f1", 0.8)
    assert math.isnan(Perplexity().result()["perplexity"])
    score.add(np.array([-1e6]), np.array([True]))
    assert score.result()["perplexity"] == math.inf
