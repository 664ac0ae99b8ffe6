"""Prediction beyond the best tags: N best, probabilities, streams; of the model and of the program."""

import io
import os
import select
import subprocess
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from structsparse import load
from structsparse.base.errors import UserError
from structsparse.cli.main import main
from structsparse.corpora import byte_streams
from structsparse.corpora.columns import Column, read_columns
from structsparse.corpora.known.tagging import planted
from structsparse.structures.chain import Chain, ChainScores
from structsparse.tasks.tagging import artifact, predictor
from structsparse.tasks.tagging.data import prepare
from structsparse.tasks.tagging.task import Tagging
from structsparse.training.batches import TokenArrays
from tests.cli.test_main import NAMES, columns, program, run  # noqa: F401
from tests.support import oracles
from tests.tasks.tagging.test_artifact import predicted, tagger_of


@pytest.fixture(scope="module")
def data():
    return prepare(planted(3, 120, 20, 90), ["word[0]", "suffix2[0]", "pos[-1..0]"])


@pytest.fixture(scope="module")
def tagger(data):
    return tagger_of(data, dead=0.3)


@pytest.fixture(scope="module")
def folder(data, tagger, tmp_path_factory):
    place = tmp_path_factory.mktemp("run") / "model"
    artifact.save(place, tagger, data)
    return place


@pytest.fixture
def model(folder, monkeypatch):
    monkeypatch.setattr(predictor, "BATCH", 200)  # several batches
    return load(folder)


@pytest.fixture(scope="module")
def scored(data, tagger):
    """The scores and lengths of the test sentences one by one, by the model that was trained."""
    arrays = data.arrays["test"]
    batches = [arrays.batch(np.array([k]), 1) for k in range(len(arrays))]
    return [(tagger(batch), batch.lengths) for batch in batches]


# --- the model


def test_marginals_are_those_of_the_training_model(data, model, scored):
    expected = torch.cat([Chain().marginals(*one)[0] for one in scored])
    found = model.probabilities(data.splits.test)
    assert (found.shape, found.dtype) == ((data.splits.test.tokens, len(data.labels)), np.float32)
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-6)


def cut(sentences, size: int):
    """The first tokens of each sentence."""
    tokens = (sentences.offsets[:-1, None] + np.arange(size)).ravel()
    own = {name: column.take(tokens) for name, column in sentences.columns.items()}
    return replace(sentences, columns=own, offsets=size * np.arange(len(sentences) + 1))


def test_the_best_sequences_are_those_of_enumeration(data, tagger, model):
    test, size = cut(data.splits.test, 4), 4
    found = model.nbest(test, 20)
    none = np.empty((test.tokens, 0), np.float32)
    arrays = TokenArrays(data.index.bags(test), np.zeros(test.tokens, int), test.offsets, none, none.astype(int))
    batch = arrays.batch(np.arange(len(test)), len(test))
    scores = ChainScores(*(score.detach().double() for score in tagger(batch)))
    for ranked, (paths, totals) in zip(found, oracles.chain_totals(scores, batch.lengths), strict=True):
        total_of = {tuple(data.labels[c] for c in path): float(t) for path, t in zip(paths, totals, strict=True)}
        assert len(total_of) == len(data.labels) ** size
        own = [total_of[tuple(sequence.tags)] for sequence in ranked]  # some of the best are all but equal
        assert len({tuple(sequence.tags) for sequence in ranked}) == 20
        np.testing.assert_allclose(own, sorted(total_of.values())[:-21:-1], rtol=1e-5)
        np.testing.assert_allclose([sequence.score for sequence in ranked], own, rtol=1e-5)
        chances = np.exp(own - totals.logsumexp(0).numpy())
        np.testing.assert_allclose([sequence.probability for sequence in ranked], chances, rtol=1e-4)


def test_the_first_is_what_tag_says_and_there_are_no_more_than_there_are(data, model):
    test = data.splits.test
    found = model.nbest(test, 3)
    assert [tag for ranked in found for tag in ranked[0].tags] == model.tag(test).strings()
    (ranked,) = model.nbest(cut(test, 1).select([0]), 1000)
    assert sorted(sequence.tags[0] for sequence in ranked) == sorted(data.labels)
    assert sum(sequence.probability for sequence in ranked) == pytest.approx(1.0)
    for count in (0, True, 1.5):
        with pytest.raises(UserError, match=f"the {count} best sequences were requested"):
            model.nbest(test, count)


def test_a_stream_is_answered_sentence_by_sentence(data, model, tagger):
    test, asked = data.splits.test, []

    def sentences():
        tokens = list(zip(*(test.columns[name].strings() for name in model.columns), strict=True))
        for begin, end in zip(test.offsets[:-1], test.offsets[1:], strict=True):
            asked.append(begin)
            yield tokens[begin:end]

    found = []
    for count, tags in enumerate(model.stream(sentences()), start=1):
        assert len(asked) == count
        found += tags
    assert found == predicted(tagger, data)
    assert list(model.stream([[]])) == [[]]


@pytest.mark.parametrize("token", ["ab", ("a",), ("a", "NOUN", "O")])
def test_a_token_that_does_not_fit_is_named(token, model):
    assert model.columns == ("word", "pos")
    with pytest.raises(UserError, match=r"this tagger expects a list of sentences, .* tuple \(word, pos\) or a dict"):
        list(model.stream([[token]]))


# --- plain Python


def as_lists(sentences, names) -> list[list[tuple[str, ...]]]:
    """Each token as the tuple of its values."""
    tokens = list(zip(*(sentences.columns[name].strings() for name in names), strict=True))
    return [tokens[begin:end] for begin, end in pairwise(sentences.offsets.tolist())]


def test_every_verb_takes_lists_and_files_as_well_as_sentences(data, model, tmp_path):
    test, tags = data.splits.test, model.tag(data.splits.test).strings()
    tuples, path = as_lists(test, model.columns), tmp_path / "test.txt"
    path.write_bytes(columns(test, *NAMES))
    dicts = [[dict(zip(model.columns, token, strict=True)) for token in sentence] for sentence in tuples]
    for source in (test, tuples, dicts, path, str(path)):
        predicted_tags = model.predict(source)
        assert [tag for sentence in predicted_tags for tag in sentence] == tags
        assert [len(sentence) for sentence in predicted_tags] == test.lengths.tolist()
        assert [ranked[0].tags for ranked in model.nbest(source, 2)] == predicted_tags
        marginals = model.marginals(source)
        assert [len(sentence) for sentence in marginals] == test.lengths.tolist()
        np.testing.assert_allclose(np.concatenate(marginals), model.probabilities(test), rtol=1e-5)


def test_scores_are_those_of_training_whatever_the_source(data, model, tagger, tmp_path):
    test, path = data.splits.test, tmp_path / "test.txt"
    path.write_bytes(columns(test, *NAMES))
    expected = Tagging(tagger, torch.nn.Identity(), None, data.score, ()).evaluate(data.batches("test", 20)).result()
    sizes = {"sentences": len(test), "tokens": test.tokens}
    for source in (test, path, as_lists(test, NAMES)):
        assert model.evaluate(source) == expected | sizes
    words = [[(word, pos, "B-strange") for word, pos, _ in sentence] for sentence in as_lists(test, NAMES)]
    with pytest.warns(RuntimeWarning, match="label B-strange is unknown to the model"):
        assert model.evaluate(words)["f1"] == 0


def test_empty_sentences_have_no_tags(model):
    assert model.predict([]) == model.marginals([]) == model.nbest([]) == []
    sentences = [[], [("New", "NOUN")], []]
    assert [len(tags) for tags in model.predict(sentences)] == [0, 1, 0]
    assert [len(ranked) for ranked in model.nbest(sentences)] == [0, len(model.labels), 0]
    assert [marginals.shape for marginals in model.marginals(sentences)] == [(k, len(model.labels)) for k in (0, 1, 0)]


def test_a_tagger_of_words_takes_lists_of_words(tmp_path):
    data = prepare(planted(3, 120, 20, 90), ["word[0]", "suffix2[0]"])
    artifact.save(tmp_path / "model", tagger_of(data, dead=0.3), data)
    model = load(tmp_path / "model")
    tags = model.predict([["John", "Smith"], ["lives"]])
    assert [len(sentence) for sentence in tags] == [2, 1]
    assert model.tag([["John", "Smith"]]).strings() == tags[0]
    for verb in (model.predict, model.nbest, model.marginals, model.tag):
        for wrong in ("John Smith", ["John", "Smith"], [[None]], {"word": ["John"]}, 7):
            with pytest.raises(UserError, match="this tagger expects a list of sentences, each a list of words"):
                verb(wrong)
    with pytest.raises(UserError, match=r"each a tuple \(word, tag\) or a dict with these keys"):
        model.evaluate([["John", "Smith"]])


# --- the program


def rows(output: bytes, width: int) -> list[list[str]]:
    table = read_columns(io.BytesIO(output), [f"c{k}" for k in range(width)], comments="auto")
    return [list(row) for row in zip(*(column.strings() for column in table.columns.values()), strict=True)]


def test_it_writes_how_probable_each_tag_is(data, model, folder, run):  # noqa: F811
    test = data.splits.test
    status, output, messages = run("predict", folder, "--marginals", stdin=columns(test, *NAMES))
    assert (status, messages) == (0, "")
    found = rows(output, 5)
    tags, chances = model.tag(test), model.probabilities(test)
    assert [row[3] for row in found] == tags.strings()
    assert [row[4] for row in found] == [f"{p:.6f}" for p in chances[range(len(tags)), tags.codes]]
    assert [row[:3] for row in found] == rows(columns(test, *NAMES), 3)


@pytest.mark.parametrize("marginals", [False, True])
def test_it_writes_a_sentence_as_often_as_it_has_tag_sequences(marginals, data, model, folder, run):  # noqa: F811
    test = data.splits.test.select(slice(5))
    options = ["--nbest", 3, *["--marginals"] * marginals]
    status, output, _ = run("predict", folder, *options, stdin=columns(test, *NAMES))
    assert status == 0
    blocks = output.decode().strip().split("\n\n")
    found = iter(blocks)
    chances = model.probabilities(test)
    for k, ranked in enumerate(model.nbest(test, 3)):
        for rank, sequence in enumerate(ranked, start=1):
            head, *tokens = next(found).split("\n")
            assert head == f"#rank={rank},score={sequence.score:.6f},probability={sequence.probability:.6f}"
            assert [token.split(" ")[3] for token in tokens] == sequence.tags
            if marginals:
                own = chances[test.offsets[k] : test.offsets[k + 1]]
                shown = [f"{own[t, data.labels.index(tag)]:.6f}" for t, tag in enumerate(sequence.tags)]
                assert [token.split(" ")[4] for token in tokens] == shown
    assert next(found, None) is None
    assert len(rows(output, 4 + marginals)) == 3 * test.tokens  # and its heads are read as comments


@pytest.mark.parametrize("options", [(), ("--marginals",), ("--nbest", "2")])
def test_pieces_change_nothing(options, data, folder, run, monkeypatch):  # noqa: F811
    given = columns(data.splits.test, *NAMES)
    whole = run("predict", folder, *options, stdin=given)
    monkeypatch.setattr(byte_streams, "_CHUNK", 50)
    assert run("predict", folder, *options, stdin=given) == whole


@pytest.mark.parametrize("piece", [20, 1 << 18])
def test_a_fault_comes_after_the_sentences_before_it(piece, data, folder, run, monkeypatch):  # noqa: F811
    monkeypatch.setattr(byte_streams, "_CHUNK", piece)
    good = columns(data.splits.test.select(slice(3)), *NAMES)
    status, output, messages = run("predict", folder, stdin=good + b"a NOUN O\none two three four\n\n" + good)
    lines = good.count(b"\n")
    assert (status, messages.count("\n")) == (2, 1)
    assert f"line {lines + 2}: 4 columns, expected 3" in messages
    assert output == run("predict", folder, stdin=good)[1]


def test_tabs_are_answered_with_tabs(folder, run):  # noqa: F811
    _, output, _ = run("predict", folder, stdin=b"New York\tNOUN\nis VERB\n\na b\tX\n")
    assert [line.count(b"\t") for line in output.splitlines()] == [2, 2, 0, 2, 0]


@pytest.mark.parametrize("count", ["0", "-1", "many", "1.5", "²"])
def test_a_number_of_sequences_that_is_none_is_refused(count, folder, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(folder), f"--nbest={count}"])
    assert stop.value.code == 2
    assert "is not a whole number from 1 on" in capsys.readouterr().err


def test_a_sentence_is_answered_before_the_next_is_there(folder):
    process = program("predict", folder, stderr=subprocess.DEVNULL)
    try:
        for word in (b"a", b"b"):
            process.stdin.write(word + b" NOUN\n\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 60)[0]
            assert os.read(process.stdout.fileno(), 100).startswith(word + b" NOUN ")
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def test_a_column_of_an_unknown_value_is_still_tagged(data, model):
    test = data.splits.test.select([0])
    strange = test.with_column("word", Column.from_strings(["☃"] * test.tokens))
    assert len(model.tag(strange)) == test.tokens
