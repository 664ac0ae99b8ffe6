"""Quantized weights: near the original ones, exact in float32, zeros kept; and the options of an artifact."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse import load
from structsparse.artifacts.folder import part_sizes
from structsparse.artifacts.quantization import REACHES, ArtifactOptions, quantize_, quantize_all_
from structsparse.artifacts.tables import step_of
from structsparse.base.errors import UserError
from tests.support.classifiers import L1, TEXTCAT
from tests.support.runs import run_here


def twin(weights: list[float], bits: int, reach: float) -> list[float]:
    """Quantization in exact fractions, one weight after the other."""
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
    quantized = quantize_(torch.from_numpy(weights.copy()), bits, reach).numpy()
    expected = twin(weights.tolist(), bits, reach)
    np.testing.assert_array_equal(quantized, np.array(expected, np.float32))
    assert (quantized[:10] == 0).all()
    multiples = quantized / np.float64(step_of(quantized))
    np.testing.assert_array_equal(multiples, np.rint(multiples))
    assert np.abs(multiples).max() <= most


def test_zeros_and_infinities_stay():
    weights = torch.tensor([0.0, -0.0, -torch.inf, 3.0, -1.0])
    quantized = quantize_(weights, 2)
    assert quantized is weights
    assert quantized[2] == -torch.inf
    assert quantized.tolist()[:2] == [0.0, 0.0]
    assert quantized[3] > 0
    assert quantized[4] == 0
    assert quantize_(torch.zeros(3), 4).tolist() == [0.0] * 3
    assert quantize_(torch.zeros(0), 4).tolist() == []
    tiny = quantize_(torch.tensor([1e-42, 0.0]), 4)
    assert tiny.tolist() == [0.0, 0.0]
    double = quantize_(torch.tensor([0.1, 1.0], dtype=torch.float64), 9)
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

    quantize_all_(parameters, 5, loss)
    chosen = loss()
    for weights, then in zip(parameters, before, strict=True):
        kept = weights.clone()
        for reach in REACHES:
            quantize_(weights.copy_(then), 5, reach)
            assert loss() >= chosen - 1e-6
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
def test_impossible_options_are_refused_in_a_sentence(options, message):
    with pytest.raises(UserError, match=message):
        ArtifactOptions.of(options)


def test_the_guard_is_the_fewest_bits_for_a_share_of_mistakes():
    assert ArtifactOptions.of({"bits": None, "mistaken": None}).guard is None
    for share in (1e-3, 2.0**-10, 1e-6, 2.0**-4):
        guard = ArtifactOptions.of({"mistaken": share}).guard
        assert 2.0**-guard <= share < 2.0 ** -(guard - 1)


def test_a_run_scores_and_reports_the_quantized_model(tmp_path):
    run = run_here("artifact.bits=4", "artifact.mistaken=0.03", folder=tmp_path / "run")
    assert run.status == 0, run.errors
    model = load(run.folder / "model")
    weights = model.tagger.scorer.table
    assert len(weights.unique()) <= 15
    assert int((weights != 0).sum()) == run.metrics["nonzero"]
    assert len(model.index) == run.metrics["rows_alive"]
    parts = part_sizes(run.folder / "model")
    assert {f"artifact_bytes_{part}": size for part, size in parts.items()}.items() <= run.metrics.items()
    assert sum(parts.values()) == run.metrics["artifact_bytes"]
    assert "the artifact has" in run.output
    assert f"all\t{sum(parts.values())}" in (run.folder / "report" / "artifact.tsv").read_text()
    plain = run_here(folder=tmp_path / "plain")
    assert plain.metrics["artifact_bytes"] > 1.5 * run.metrics["artifact_bytes"]


def test_a_text_classifier_is_quantized_but_has_no_keys(tmp_path):
    run = run_here(*L1, "artifact.bits=5", folder=tmp_path / "run", data=TEXTCAT, base=())
    assert run.status == 0, run.errors
    model = load(run.folder / "model")
    assert len(np.unique(model.table)) <= 31
    refused = run_here(*L1, "artifact.mistaken=1e-3", folder=tmp_path / "refused", data=TEXTCAT, base=())
    assert refused.status == 2
    assert "artifact.mistaken=0.001: an artifact of this task has words, not keys" in refused.errors
    assert json.loads((run.folder / "metrics.json").read_text())["artifact_bytes_index"] > 0
