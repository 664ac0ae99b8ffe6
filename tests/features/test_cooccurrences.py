"""Counts of co-occurrences against a loop over all pairs of words; in memory and on the disk; associations."""

import mmap
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.features import cooccurrences
from structsparse.features.cooccurrences import Window, associations, count, count_on_disk

WORDS = 60


def text(tokens: int = 3000, seed: int = 0) -> np.ndarray:
    """Random codes, small ones more often; some words are not counted, and some positions end a sentence."""
    rng = np.random.default_rng(seed)
    codes = (WORDS * rng.random(tokens) ** 2).astype(np.int32)
    codes[rng.random(tokens) < 0.05] = -1
    codes[rng.random(tokens) < 0.08] = -2
    return codes


def slow_counts(codes: np.ndarray, window: Window) -> np.ndarray:
    """A dictionary of pairs in both orders, sentence by sentence, in exact fractions."""
    counts, sentence = Counter(), []
    share = {
        "none": lambda d: Fraction(1),
        "linear": lambda d: Fraction(window.size + 1 - d, window.size),
        "harmonic": lambda d: Fraction(1, d),
    }[window.weighting]
    for code in [*codes.tolist(), -2]:
        if code != -2:
            sentence.append(code)
            continue
        for i, a in enumerate(sentence):
            for j, b in enumerate(sentence):
                if i != j and abs(i - j) <= window.size and a >= 0 and b >= 0:
                    counts[a, b] += share(abs(i - j))
        sentence = []
    table = np.zeros((WORDS, WORDS))
    for pair, value in counts.items():
        table[pair] = value
    return table


@pytest.fixture(params=[5, 4096])
def _frequent(request, monkeypatch):
    """Some pairs, or all, are counted in the square array."""
    monkeypatch.setattr(cooccurrences, "FREQUENT", request.param)


@pytest.mark.usefixtures("_frequent")
@pytest.mark.parametrize("weighting", cooccurrences.WEIGHTINGS)
@pytest.mark.parametrize("size", [1, 5])
def test_counts_are_those_of_a_loop(size, weighting, monkeypatch):
    monkeypatch.setattr(cooccurrences, "CHUNK", 700)
    window = Window(size, weighting)
    found = count(text(), WORDS, window)
    np.testing.assert_allclose(found.matrix.toarray() / found.scale, slow_counts(text(), window), rtol=1e-14)
    assert found.matrix.has_sorted_indices
    assert (found.matrix.data > 0).all()


@pytest.mark.usefixtures("_frequent")
@pytest.mark.parametrize("weighting", ["none", "harmonic"])
def test_counting_on_disk_gives_the_same(weighting, tmp_path, monkeypatch):
    codes, window = text(20_000), Window(4, weighting)
    expected = count(codes, WORDS, window)
    parts = cooccurrences._parts
    monkeypatch.setattr(cooccurrences, "_parts", lambda length, window, most: parts(length, window, 900))
    pieces = cooccurrences._Pieces
    monkeypatch.setattr(cooccurrences, "_Pieces", lambda runs, most: pieces(runs, 300))
    found = count_on_disk(codes, WORDS, window, 64, tmp_path / "counts")
    same(found.matrix, expected.matrix)
    assert all(in_file(getattr(found.matrix, name)) for name in ("data", "indices"))
    assert not list(tmp_path.glob("counts/run*"))


def in_file(array: np.ndarray) -> bool:
    """Whether an array lies in a file that is mapped into memory."""
    return isinstance(array, np.memmap | mmap.mmap) or (array is not None and in_file(array.base))


def same(found: sparse.csr_array, expected: sparse.csr_array) -> None:
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_a_count_that_was_stopped_goes_on(tmp_path, monkeypatch):
    codes, window, folder = text(20_000), Window(), tmp_path / "counts"
    expected = count(codes, WORDS, window)
    parts, run, made = cooccurrences._parts, cooccurrences._run, []
    monkeypatch.setattr(cooccurrences, "_parts", lambda length, window, most: parts(length, window, 2000))

    def killed(codes, begin, *rest):
        made.append(begin)
        if len(made) == 4:
            raise KeyboardInterrupt
        return run(codes, begin, *rest)

    monkeypatch.setattr(cooccurrences, "_run", killed)
    with pytest.raises(KeyboardInterrupt):
        count_on_disk(codes, WORDS, window, 64, folder)
    same(count_on_disk(codes, WORDS, window, 64, folder).matrix, expected.matrix)
    assert made == [0, 2000, 4000, 6000, *range(6000, 20_000, 2000)]
    same(count_on_disk(codes, WORDS, window, 64, folder).matrix, expected.matrix)
    assert len(made) == 11, "finished counts are read, not made again"
    other = text(20_000, seed=1)
    same(count_on_disk(other, WORDS, window, 64, folder).matrix, count(other, WORDS, window).matrix)


def test_a_text_without_pairs_has_an_empty_matrix(tmp_path):
    codes = np.array([3, -2, 4, -2, -1, -2], np.int32)
    for found in (count(codes, WORDS, Window()), count_on_disk(codes, WORDS, Window(), 64, tmp_path)):
        assert found.matrix.nnz == 0
        assert associations(found).nnz == 0


@pytest.mark.parametrize("smoothing", [1.0, 0.75])
@pytest.mark.parametrize("shift", [1.0, 5.0])
def test_associations_are_those_of_the_formula(smoothing, shift):
    counted = count(text(), WORDS, Window(3, "linear"))
    table = slow_counts(text(), Window(3, "linear"))
    words = table.sum(1) / table.sum()
    contexts = table.sum(0) ** smoothing / (table.sum(0) ** smoothing).sum()
    with np.errstate(divide="ignore"):
        pmi = np.log(table / table.sum() / np.outer(words, contexts)) - np.log(shift)
    expected = np.where(table > 0, pmi, 0.0)
    np.testing.assert_allclose(associations(counted, "pmi", smoothing, shift).toarray(), expected, atol=1e-6)
    positive = associations(counted, "ppmi", smoothing, shift)
    np.testing.assert_allclose(positive.toarray(), np.maximum(expected, 0), atol=1e-6)
    assert (positive.data > 0).all()
    np.testing.assert_allclose(associations(counted, "log_count").toarray(), np.log1p(table), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), "features.window is 0"),
        (lambda: Window(5, "square"), "features.weighting is square, expected one of none"),
        (lambda: associations(count(text(), WORDS, Window()), "lmi"), "features.association is lmi"),
        (lambda: associations(count(text(), WORDS, Window()), "pmi", 0.0), "features.smoothing is 0.0"),
        (lambda: count_on_disk(text(), WORDS, Window(), 3, None), "features.memory is 3"),
    ],
)
def test_bad_options_get_one_sentence(make, message):
    with pytest.raises(UserError, match=message):
        make()
