"""Exports of language models: ARPA files give the same probabilities, tables have every weight."""

import math

import numpy as np
import pytest

from structsparse import load
from structsparse.corpora.text_reading import END, START, UNKNOWN
from structsparse.tasks.lm import export
from structsparse.tasks.lm.artifact import save
from tests.support.language_models import SIGNS, DenseModel, model_of, sentences


def read_arpa(text: str) -> tuple[dict[int, int], dict[tuple[str, ...], tuple[float, float]]]:
    """The counts in the head of an ARPA file, and log10 of (probability, back-off weight) of every n-gram."""
    head, grams, length = {}, {}, 0
    for line in text.splitlines():
        if line.startswith("ngram "):
            key, _, count = line[6:].partition("=")
            head[int(key)] = int(count)
        elif line.endswith("-grams:"):
            length = int(line[1:].split("-")[0])
        elif line and not line.startswith("\\"):
            probability, words, *backoff = line.split("\t")
            words = tuple(words.split(" "))
            assert len(words) == length
            assert words not in grams
            grams[words] = (float(probability), float(backoff[0]) if backoff else 0.0)
    assert text.rstrip().endswith("\\end\\")
    return head, grams


def back_off(grams: dict, before: tuple[str, ...], word: str) -> float:
    """log10 of the probability of a word by the rule of back-off models."""
    if (*before, word) in grams:
        return grams[(*before, word)][0]
    return grams.get(before, (0.0, 0.0))[1] + back_off(grams, before[1:], word)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("dead", [0.0, 0.7])
def test_an_arpa_file_gives_the_same_probabilities(order, signs, dead):
    model = model_of(4, order, signs=signs, dead=dead)
    head, grams = read_arpa("".join(export.arpa(model)))
    assert head == {k: sum(len(words) == k for words in grams) for k in head}
    for sentence in [*sentences(5, 30, 12), *sentences(4, 10)]:
        known = [word if word in model.vocabulary.codes else UNKNOWN for word in sentence]
        before = (START, *known)
        values = [
            back_off(grams, before[: k + 1][-order + 1 :] if order > 1 else (), word) * math.log(10)
            for k, word in enumerate([*known, END])
        ]
        np.testing.assert_allclose(values, model.log_probabilities(model.encode([sentence])), atol=1e-6)


def test_the_arpa_file_has_what_other_readers_require():
    model = model_of(4, 5, dead=0.8)
    _, grams = read_arpa("".join(export.arpa(model)))
    assert {(word,) for word in (*model.vocabulary.words, START)} == {words for words in grams if len(words) == 1}
    assert all(words[:-1] in grams for words in grams if len(words) > 1)  # with the context of each
    assert {words for words in grams if START in words[1:] or END in words[:-1]} == set()
    assert grams[START,][0] == -99
    assert all(probability <= 0 for probability, _ in grams.values())
    contexts = {tuple(context.words) for context in model.contexts() if context.words}
    assert contexts <= {*grams}


def test_kenlm_reads_the_same_probabilities(tmp_path):
    kenlm = pytest.importorskip("kenlm")
    model = model_of(4, 5, dead=0.6)
    (tmp_path / "model.arpa").write_text("".join(export.arpa(model)))
    other = kenlm.Model(str(tmp_path / "model.arpa"))
    for sentence in sentences(5, 30, 12):
        values = [value for value, _, _ in other.full_scores(" ".join(sentence))]
        np.testing.assert_allclose(
            np.array(values) * math.log(10), model.log_probabilities(model.encode([sentence])), atol=1e-5
        )


@pytest.mark.parametrize("counted", [True, False])
def test_the_table_has_every_living_weight(counted, tmp_path):
    model = model_of(4, 4)
    counts = {}
    for sentence in sentences(4):
        before = [START, *sentence]
        for k, word in enumerate([*sentence, END], start=1):
            for length in range(min(k, 3) + 1):
                key = " ".join(before[k - length : k]), word
                counts[key] = counts.get(key, 0) + 1
    dense = DenseModel(model)
    if not counted:
        save(tmp_path / "model", model)
        model = load(tmp_path / "model")
    header, *rows = "".join(export.tsv(model)).splitlines()
    assert header.split("\t") == ["context", "word", "weight", "probability", *(["count"] if counted else [])]
    living = {(" ".join(context), word) for (context, word), weight in dense.weights.items() if weight}
    assert {tuple(row.split("\t")[:2]) for row in rows} == living
    assert len(rows) == len(living)
    for row in rows:
        context, word, weight, probability, *count = row.split("\t")
        expected = dense.weights[tuple(context.split()), word] + (0.0 if context else dense.base[word])
        assert float(weight) == pytest.approx(expected, rel=1e-5)
        assert float(probability) == pytest.approx(dense.probabilities(context.split())[word], rel=1e-4)
        assert count == ([str(counts.get((context, word), 0))] if counted else [])


def test_exports_do_not_depend_on_the_block_size(monkeypatch):
    model = model_of(4)
    texts = ["".join(write(model)) for write in export.FORMATS.values()]
    monkeypatch.setattr(export, "_ROWS", 3)
    assert ["".join(write(model)) for write in export.FORMATS.values()] == texts
