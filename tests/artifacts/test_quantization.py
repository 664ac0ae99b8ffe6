"""Weights of few bits: near, exact in float32, zeros kept; and the options that ask for them."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse.artifacts.quantization import REACHES, Small, round_, round_all_
from structsparse.artifacts.tables import step_of
from structsparse.base.errors import UserError
from structsparse.tasks.tagging import artifact
from tests.support.runs import run_here
from tests.tasks.textcat.test_task import L1, TEXTCAT


def twin(weights: list[float], bits: int, reach: float) -> list[float]:
    """One weight after the other, by fractions."""
    most = 2 ** (bits - 1) - 1
    least = Fraction(reach) * Fraction(max(map(abs, weights))) / most
    unit = Fraction(1)  # the step is a multiple of it, the 128th to the 256th
    while least > 256 * unit:
        unit *= 2
    while least <= 128 * unit:
        unit /= 2
    step = math.ceil(least / unit) * unit
    return [float(max(-most, min(most, round(Fraction(w) / step))) * step) for w in weights]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(2, 10), st.sampled_from([1.0, 0.75, 0.5]), st.integers(-60, 60))
def test_weights_become_the_nearest_multiples_of_a_step(seed, bits, reach, scale):
    draw, most = np.random.default_rng(seed), 2 ** (bits - 1) - 1
    weights = (draw.normal(size=40) * 2.0**scale).astype(np.float32)
    weights[:10] = 0
    found = round_(torch.from_numpy(weights.copy()), bits, reach).numpy()
    expected = twin(weights.tolist(), bits, reach)
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert (found[:10] == 0).all()
    multiples = found / np.float64(step_of(found))
    np.testing.assert_array_equal(multiples, np.rint(multiples))
    assert np.abs(multiples).max() <= most


def test_what_is_zero_or_infinite_stays():
    weights = torch.tensor([0.0, -0.0, -torch.inf, 3.0, -1.0])
    found = round_(weights, 2)
    assert found is weights
    assert found[2] == -torch.inf
    assert found.tolist()[:2] == [0.0, 0.0]
    assert found[3] > 0
    assert found[4] == 0
    assert round_(torch.zeros(3), 4).tolist() == [0.0] * 3
    assert round_(torch.zeros(0), 4).tolist() == []
    tiny = round_(torch.tensor([1e-42, 0.0]), 4)
    assert tiny.tolist() == [0.0, 0.0]
    double = round_(torch.tensor([0.1, 1.0], dtype=torch.float64), 9)
    assert (double == double.float().double()).all()


def test_each_parameter_gets_the_step_with_the_least_loss():
    parameters = [torch.randn(50, generator=torch.Generator().manual_seed(k)) * 10**k for k in range(3)]
    parameters[1][0] = 300.0  # the others would lose too much by its step
    before = [weights.clone() for weights in parameters]
    scales = torch.tensor([1.0, 0.1, 0.01])

    def loss() -> float:
        return sum(
            float((scale * (now - then)).abs().clamp(max=1).sum())
            for scale, now, then in zip(scales, parameters, before, strict=True)
        )

    round_all_(parameters, 5, loss)
    found = loss()
    for weights, then in zip(parameters, before, strict=True):
        kept = weights.clone()
        for reach in REACHES:
            round_(weights.copy_(then), 5, reach)
            assert loss() >= found - 1e-6
        weights.copy_(kept)
    assert parameters[1].abs().max() < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 1}, "artifact.bits=1: expected 2 to 10"),
        ({"bits": 11}, "artifact.bits=11: expected 2 to 10"),
        ({"bits": 6.0}, "artifact.bits=6.0: expected"),
        ({"bits": True}, "artifact.bits=True: expected"),
        ({"bits": "six"}, "artifact.bits=six: expected"),
        ({"mistaken": 0}, "artifact.mistaken=0: expected a share"),
        ({"mistaken": 0.5}, "artifact.mistaken=0.5: expected a share"),
        ({"mistaken": "few"}, "artifact.mistaken=few: expected a share"),
    ],
)
def test_options_that_cannot_be_are_refused_in_a_sentence(options, message):
    with pytest.raises(UserError, match=message):
        Small.of(options)


def test_the_guard_holds_what_was_asked_for():
    assert Small.of({"bits": None, "mistaken": None}).guard is None
    for share in (1e-3, 2.0**-10, 1e-6, 2.0**-4):
        guard = Small.of({"mistaken": share}).guard
        assert 2.0**-guard <= share < 2.0 ** -(guard - 1)


def test_a_run_tests_and_reports_the_model_it_leaves_behind(tmp_path):
    found = run_here("artifact.bits=4", "artifact.mistaken=0.03", folder=tmp_path / "run")
    assert found.status == 0, found.errors
    model = artifact.load(found.folder / "model")
    weights = model.tagger.scorer.table
    assert len(weights.unique()) <= 15
    assert int((weights != 0).sum()) == found.metrics["nonzero"]
    assert len(model.index) == found.metrics["rows_alive"]
    parts = artifact.parts(found.folder / "model")
    assert {f"artifact_bytes_{part}": size for part, size in parts.items()}.items() <= found.metrics.items()
    assert sum(parts.values()) == found.metrics["artifact_bytes"]
    assert "the small model has" in found.output
    assert f"all\t{sum(parts.values())}" in (found.folder / "report" / "artifact.tsv").read_text()
    plain = run_here(folder=tmp_path / "plain")
    assert plain.metrics["artifact_bytes"] > 1.5 * found.metrics["artifact_bytes"]


def test_a_run_of_documents_is_rounded_and_knows_no_keys(tmp_path):
    found = run_here(*L1, "artifact.bits=5", folder=tmp_path / "run", data=TEXTCAT, base=())
    assert found.status == 0, found.errors
    model = artifact.load(found.folder / "model")
    assert len(np.unique(model.table)) <= 31
    refused = run_here(*L1, "artifact.mistaken=1e-3", folder=tmp_path / "refused", data=TEXTCAT, base=())
    assert refused.status == 2
    assert "artifact.mistaken=0.001: an artifact of this task has words, not keys" in refused.errors
    assert json.loads((found.folder / "metrics.json").read_text())["artifact_bytes_index"] > 0
