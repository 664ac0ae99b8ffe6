"""Comparison of word vectors by a paired bootstrap, against a loop over resampled pairs with scipy."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from structsparse.base.errors import UserError
from structsparse.cli.main import main
from structsparse.tasks.embeddings.evaluation import AnalogySet, SimilaritySet, Vectors, compared, sets_of
from structsparse.tasks.embeddings.predictor import PlainVectors
from structsparse.tasks.embeddings.similarity import unit_rows

WORDS = tuple(f"w{k}" for k in range(60))


def noisy(truth: np.ndarray, noise: float, seed: int, words=WORDS) -> Vectors:
    """Vectors that are the true ones with noise; some words may be unknown."""
    table = truth + noise * np.random.default_rng(seed).normal(size=truth.shape)
    return Vectors(unit_rows(table[: len(words)]), {word: k for k, word in enumerate(words)})


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 8))


def pairs(truth: np.ndarray, count: int, seed: int, name: str = "pairs") -> SimilaritySet:
    """Pairs of words whose human scores are the true cosines, rounded so that some are equal."""
    drawn, unit = np.random.default_rng(seed).integers(60, size=(count, 2)), unit_rows(truth)
    return SimilaritySet(
        name, tuple((WORDS[a], WORDS[b], float((unit[a] @ unit[b]).round(1))) for a, b in drawn.tolist())
    )


def test_the_error_of_a_difference_is_that_of_resampled_pairs(truth):
    one, other = noisy(truth, 0.7, 1, WORDS[:50]), noisy(truth, 1.2, 2, WORDS[5:])
    asked = pairs(truth, 120, 3)
    figures = compared(one, other, [asked])["sets"]["pairs"]
    shared = [(a, b, score) for a, b, score in asked.pairs if {a, b} <= {*WORDS[5:50]}]
    assert (figures["known"], figures["pairs"]) == (len(shared), 120)
    cosines = np.array([
        [v.unit[v.codes[a]] @ v.unit[v.codes[b]] for a, b, _ in shared] for v in (one, other)
    ])  # fmt: skip
    human = np.array([score for _, _, score in shared])
    ours, theirs = (spearmanr(values, human).statistic for values in cosines)
    assert (figures["spearman"], figures["other"]) == (pytest.approx(ours), pytest.approx(theirs))
    assert figures["difference"] == pytest.approx(ours - theirs)
    rng, values = np.random.default_rng(9), []
    for _ in range(1500):
        sample = rng.integers(len(shared), size=len(shared))
        values.append(np.subtract(*(spearmanr(of[sample], human[sample]).statistic for of in cosines)))
    assert figures["error"] == pytest.approx(np.std(values), rel=0.12)
    assert figures["above"] == pytest.approx(np.mean(np.array(values) > 0), abs=0.04)


def test_the_mean_over_sets_has_the_error_of_independent_sets(truth):
    one, other = noisy(truth, 0.7, 1), noisy(truth, 1.2, 2)
    sets = [pairs(truth, 100, seed, f"set {seed}") for seed in (3, 4, 5)]
    figures = compared(one, other, sets)
    of_sets = [figures["sets"][s.name] for s in sets]
    assert figures["similarity"]["difference"] == pytest.approx(np.mean([of["difference"] for of in of_sets]))
    together = np.sqrt(sum(of["error"] ** 2 for of in of_sets)) / 3
    assert figures["similarity"]["error"] == pytest.approx(together, rel=0.1)


def test_a_model_does_not_differ_from_itself(truth):
    same = noisy(truth, 0.5, 1)
    figures = compared(same, same, [pairs(truth, 50, 1)])
    assert figures["sets"]["pairs"]["difference"] == figures["sets"]["pairs"]["error"] == 0
    assert figures["similarity"] == {"difference": 0.0, "error": 0.0, "above": 0.0}


def test_accuracies_are_compared_over_questions_that_both_know():
    words = ("man", "woman", "king", "queen", "apple")
    table = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [-1, 0, 0]], np.float32)
    right = Vectors(unit_rows(table), {word: k for k, word in enumerate(words)})
    wrong = Vectors(unit_rows(table[[0, 4, 2, 1, 3]]), right.codes)
    asked = AnalogySet("family", (("man", "woman", "king", "queen"), ("man", "king", "woman", "queen"), (*"abcd",)))
    figures = compared(right, wrong, [asked])["sets"]["family"]
    assert (figures["accuracy"], figures["other"], figures["difference"]) == (1, 0, 1)
    assert (figures["known"], figures["questions"], figures["above"]) == (2, 3, 1)


def test_too_few_pairs_have_no_difference(truth):
    one = noisy(truth, 0.5, 1, WORDS[:3])
    figures = compared(one, noisy(truth, 0.5, 2), [SimilaritySet("few", (("w0", "w1", 1.0), ("w8", "w9", 2.0)))])
    assert np.isnan([figures["sets"]["few"][key] for key in ("spearman", "difference", "error")]).all()
    assert "similarity" not in figures


def test_evaluate_against_prints_differences(truth, tmp_path, capsys):
    asked = pairs(truth, 80, 3)
    (tmp_path / "pairs.txt").write_text("".join(f"{a} {b} {score}\n" for a, b, score in asked.pairs))
    for name, noise in (("good", 0.3), ("bad", 2.0)):
        rows = zip(WORDS, noisy(truth, noise, 1).unit, strict=True)
        (tmp_path / name).write_text("".join(f"{w} {' '.join(map(str, v))}\n" for w, v in rows))
    line = ["evaluate", str(tmp_path / "good"), str(tmp_path / "pairs.txt"), "--against", str(tmp_path / "bad")]
    assert main([*line, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["similarity"]["difference"] > 3 * figures["similarity"]["error"] > 0
    assert main(line) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith("pairs ")
    shown = f"{figures['similarity']['difference']:+.4f} ± {figures['similarity']['error']:.4f}"
    assert printed[-1].startswith("mean spearman")
    assert printed[-1].endswith(shown)
    assert main([*line[:4], str(tmp_path / "nothing")]) == 2


def test_without_a_file_known_sets_are_used(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path))
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "cache"))
    vectors = PlainVectors(WORDS[:4], np.eye(4, dtype=np.float32))
    with pytest.raises(UserError, match="no known sets of words below STRUCTSPARSE_DATA"):
        vectors.evaluate()
    (tmp_path / "wordsim").mkdir()
    (tmp_path / "wordsim" / "EN-RG-65.txt").write_text("w0 w1 3\nw1 w2 2\nw2 w3 1\n")
    assert [each.name for each in sets_of(None)] == ["RG-65"]
    assert vectors.evaluate()["sets"]["RG-65"]["known"] == 3
