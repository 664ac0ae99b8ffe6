"""Attributes from lexicons and clusters, against a search of all entries at all places, and in a whole run."""

import numpy as np
import pytest

from structsparse import load
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.planted.tagging import planted_tagging
from structsparse.features.word_lists import WordLists, are_word_lists, brown_clusters
from tests.support.runs import run_here


def sentences(*lines):
    words = [word for line in lines for word in line.split()]
    offsets = np.cumsum([0, *(len(line.split()) for line in lines)])
    return Sentences({"word": Column.from_strings(words)}, offsets, "text")


def written(path, text):
    path.write_text(text)
    return str(path)


def longest_first(line, entries):
    """The values of the attribute lexicon: at each free token, from the left, the longest of all entries."""
    words, values = line.split(), []
    while len(values) < len(words):
        rest = words[len(values) :]
        fits = [entry.split() for entry in entries if rest[: len(entry.split())] == entry.split()]
        best = max(fits, key=len, default=None)
        kind = entries[" ".join(best)] if best else None
        values += ["O"] if best is None else [f"B-{kind}", *[f"I-{kind}"] * (len(best) - 1)]
    return values


def test_the_longest_entry_wins_from_left_to_right():
    draw = np.random.default_rng(0)
    for _ in range(50):
        entries = {" ".join(draw.choice([*"abc"], draw.integers(1, 4))): str(draw.integers(2)) for _ in range(6)}
        lines = [" ".join(draw.choice([*"abcd"], draw.integers(1, 9))) for _ in range(4)]
        values = WordLists(entries).added(sentences(*lines)).columns["lexicon"].strings()
        assert values == [value for line in lines for value in longest_first(line, entries)]


def test_classes_case_and_sentence_ends(tmp_path):
    places = written(tmp_path / "places.txt", "New  York\nYork\tTOWN\n\nOslo\n")
    names = written(tmp_path / "names.txt", "york\tPERSON\n")
    text = sentences("In New York or York", "New", "York NEW york")
    lists = WordLists.read([places, names])
    assert lists.added(text).columns["lexicon"].strings() == [
        *("O", "B-places", "I-places", "O", "B-PERSON+TOWN"), "O", *("B-PERSON+TOWN", "B-places", "I-places"),
    ]  # fmt: skip
    exact = WordLists.read([places, names], lower=False)
    assert exact.added(text).columns["lexicon"].strings() == [
        *("O", "B-places", "I-places", "O", "B-TOWN"), "O", *("B-TOWN", "O", "B-PERSON"),
    ]  # fmt: skip


def test_clusters_are_prefixes_of_bits(tmp_path):
    path = written(tmp_path / "paths", "0110101\tOslo\t12\n0110100001111000011110\tyork\n1\tthe\n")
    text = WordLists.read(clusters=path).added(sentences("The Oslo York x"))
    assert text.columns["cluster4"].strings() == ["1", "0110", "0110", ""]
    assert text.columns["cluster6"].strings() == ["1", "011010", "011010", ""]
    assert text.columns["cluster20"].strings() == ["1", "0110101", "01101000011110000111", ""]


def test_brown_clusters_of_sentences_and_of_a_text_are_the_same(tmp_path):
    lines = ["the cat runs", "the dog runs", "a cat eats", "a dog eats", "the cat eats", "a dog runs"]
    train, path = sentences(*lines), written(tmp_path / "text", "\n".join(lines) + "\n")
    bits = brown_clusters(train, None, 6, 0)
    assert bits == brown_clusters(sentences("x"), path, 6, 0)
    assert {*bits} == {*"the a cat dog runs eats".split()}
    assert len({*bits.values()}) == 6  # each word is a class of its own
    assert bits["cat"][:-1] == bits["dog"][:-1]  # as they have the same neighbours
    lists = WordLists.read(clusters="brown", make=lambda: bits)
    assert lists.added(train).columns["cluster20"].strings()[:2] == [bits["the"], bits["cat"]]


@pytest.mark.parametrize(
    "lists", [WordLists({"new york": "A+B", "oslo": "A"}, False), WordLists({}, True, {"a": "01"})]
)
def test_what_an_artifact_stores_gives_the_same_attributes(lists):
    stored = lists.described()
    assert are_word_lists(stored)
    text = sentences("a new york oslo b")
    again = WordLists.restored(stored)
    assert again.attributes == lists.attributes
    for name in lists.attributes:
        assert again.added(text).columns[name].strings() == lists.added(text).columns[name].strings()
    for damaged in ([], {}, stored | {"lower": 1}, stored | {"lexicon": {"A": "b"}}, stored | {"clusters": {"2": []}}):
        assert not are_word_lists(damaged)


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        ("", {"lexicons": ["FILE"]}, "nothing in it"), ("a\tb\tc\n", {"lexicons": ["FILE"]}, "1: expected an entry"),
        ("a\tb c\n", {"lexicons": ["FILE"]}, "a class without spaces"), ("a", {"lexicons": "FILE"}, "list of files"),
        ("01\ta\n2\tb\n", {"clusters": "FILE"}, "line 2: expected bits"), ("a", {"lexicons": ["no"]}, "no such file"),
    ],
)  # fmt: skip
def test_faults_of_files_are_named(content, options, reason, tmp_path):
    path = written(tmp_path / "list", content)
    given = {key: [p.replace("FILE", path) for p in v] if isinstance(v, list) else path for key, v in options.items()}
    with pytest.raises(UserError, match=reason):
        WordLists.read(**given)


def test_columns_of_the_corpus_are_not_replaced():
    text = sentences("a b")
    with pytest.raises(UserError, match="a column has the name lexicon"):
        WordLists({"a": "A"}).added(text.with_column("lexicon", text.columns["word"]))


def test_a_tagger_keeps_its_word_lists(tmp_path):
    words = planted_tagging(seed=0, train=60, dev=20, test=20).train.columns["word"].values
    lexicon = written(tmp_path / "kinds.txt", "".join(f"{word}\tK{k % 2}\n" for k, word in enumerate(words[:40])))
    paths = written(tmp_path / "paths", "".join(f"{k:b}\t{word}\n" for k, word in enumerate(words[:60])))
    options = ("task=ner", "reg=l2", "trainer.max_epochs=2", "features.templates=['word[0]','lexicon[0]']")
    lists = (f"features.lexicons=[{lexicon}]", f"features.clusters={paths}")
    data = ("data=planted", "data.seed=0", "data.train=60", "data.dev=20", "data.test=20")
    run = run_here(*options, *lists, folder=tmp_path / "run", data=data, base=())
    assert run.status == 0, run.errors
    (tmp_path / "kinds.txt").unlink()
    (tmp_path / "paths").unlink()
    model = load(tmp_path / "run" / "model")
    assert model.columns == ("word",)
    assert {"lexicon[0]", "lexicon[-1]", "cluster4[0]"} <= {template.name for template in model.index.templates}
    test = planted_tagging(seed=0, train=60, dev=20, test=20).test
    assert model.evaluate(test)["f1"] == pytest.approx(run.metrics["f1"], abs=1e-9)
    lines = (tmp_path / "run" / "report" / "predictions_test.txt").read_text().splitlines()
    assert [line.split(" ")[-1] for line in lines if line] == model.tag(test).strings()
    assert len(lines[0].split(" ")) == len(test.columns) + 1
