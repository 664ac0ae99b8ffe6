"""Treebanks by name and from files: parts, notes, and errors that end a run."""

import os
import re
from pathlib import Path

import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import TreebankSplits, files, ud
from tests.support.conllu import contents, of_heads, row, text_of

OPTIONS = {"dev": None, "test": None, "held_out": 0.1, "split": 0, "punctuation": "auto"}
TAGGED = text_of([[row(1, "a", upos="X", head=0, deprel="root"), row(2, ".", upos="PUNCT", head=1, deprel="punct")]])
FEATURES = ("features.templates=['word[0]','suffix3[0]','shape[1]']", "trainer.max_epochs=1", "recipe=direct", "reg=l1")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with a small treebank of Universal Dependencies."""
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path))
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ud").mkdir()
    for part, size in (("train", 20), ("dev", 3), ("test", 2)):
        (tmp_path / "ud" / f"xx_toy-ud-{part}.conllu").write_text(TAGGED * size)
    return tmp_path


def test_a_treebank_is_found_by_its_name(data):
    corpus = ud("xx_toy", "auto")
    assert [len(part) for part in corpus.parts.values()] == [20, 3, 2]
    assert (corpus.name, corpus.rule) == ("xx_toy", "upos")
    assert corpus.punctuation("test").tolist() == [False, True] * 2


def test_a_treebank_is_found_in_the_cache_too(data, monkeypatch):
    (data / "cache").mkdir()
    (data / "ud").rename(data / "cache" / "ud")
    assert len(ud("xx_toy", "auto").train) == 20
    monkeypatch.delenv("STRUCTSPARSE_DATA")
    assert len(ud("xx_toy", "auto").train) == 20


def test_the_error_for_a_missing_file_says_where_to_put_it(data):
    (data / "ud" / "xx_toy-ud-dev.conllu").unlink()
    expected = (
        "corpus xx_toy: no xx_toy-ud-dev.conllu, and it cannot be downloaded; put it at "
        f"STRUCTSPARSE_DATA/ud/xx_toy-ud-dev.conllu (STRUCTSPARSE_DATA: {data}) or at "
        f"{data}/cache/ud/xx_toy-ud-dev.conllu, beside "
        "xx_toy-ud-train.conllu, xx_toy-ud-test.conllu; universaldependencies.org has them; data=treebank is for other "
        "files; there are xx_toy"
    )
    with pytest.raises(UserError, match=f"^{re.escape(expected)}$"):
        ud("xx_toy", "auto")


@pytest.mark.parametrize("name", ["", "en", "../etc", "xx_Toy", "UD_English-EWT"])
def test_an_impossible_name_of_a_treebank_is_refused(name, data):
    with pytest.raises(UserError, match=f"data.treebank is {name!r}, expected a name such as .*; there are xx_toy"):
        ud(name, "auto")


def test_parts_without_a_file_are_drawn_from_train_without_overlap(tmp_path):
    trees = of_heads(*([0] * k for k in range(1, 21)))
    (tmp_path / "train").write_text(trees)
    corpus = files(str(tmp_path / "train"), **OPTIONS)
    lengths = [part.lengths.tolist() for part in corpus.parts.values()]
    assert [len(part) for part in lengths] == [16, 2, 2]
    assert sorted(sum(lengths, [])) == list(range(1, 21))
    assert all(part == sorted(part) for part in lengths)
    again, other = (files(str(tmp_path / "train"), **{**OPTIONS, "split": split}) for split in (0, 1))
    assert again.dev.lengths.tolist() == lengths[1]
    assert other.dev.lengths.tolist() != lengths[1]
    (tmp_path / "test").write_text(of_heads([0, 1]))
    corpus = files(str(tmp_path / "train"), **{**OPTIONS, "test": str(tmp_path / "test")})
    assert [len(part) for part in corpus.parts.values()] == [18, 2, 1]
    assert contents(corpus.test) == [[("a", *("_",) * 5, 0), ("b", *("_",) * 5, 1)]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 0.5}, "data.held_out is 0.5; without files for dev and test it must be above 0 and below 0.5"),
        ({"held_out": 0.01}, "20 sentences of train cannot give 0 for dev and 0 for test"),
        ({"punctuation": "xpos"}, "data.punctuation is 'xpos', expected auto, upos or characters"),
        ({"dev": "nowhere"}, "nowhere: no such file"),
    ],
)
def test_bad_options_are_refused(options, message, data):
    with pytest.raises(UserError, match=re.escape(message)):
        files("ud/xx_toy-ud-train.conllu", **{**OPTIONS, **options})


def test_constant_columns_and_unseen_relations_are_noted(tmp_path):
    for part, labels in {"train": "ab", "dev": "ac", "test": "ddb"}.items():
        rows = [row(k, chr(96 + k), upos="X", head=k - 1, deprel=label) for k, label in enumerate(labels, 1)]
        (tmp_path / part).write_text(text_of([rows]) + of_heads([0, 0]) * (part == "dev"))
    corpus = files(**{**OPTIONS, **{part: str(tmp_path / part) for part in ("train", "dev", "test")}})
    assert corpus.describe()[3:] == [
        "dev: 1 of 2 trees have several roots, where CoNLL-U has one",
        "lemma is '_' throughout train",
        "upos is 'X' throughout train",
        "xpos is '_' throughout train",
        "feats is '_' throughout train",
        "dev: 3 tokens with a relation not seen in training (_, c)",
        "test: 2 tokens with a relation not seen in training (d)",
        "punctuation is tokens of nothing but punctuation (data.punctuation=characters), 0.0% of train",
    ]


def test_treebanks_are_chosen_by_the_options_of_a_run(data, run):
    """Shown with a tagger of their parts of speech."""
    for options in (("data=ud", "data.treebank=xx_toy"), ("data=treebank", "data.train=ud/xx_toy-ud-train.conllu")):
        result = run("task=pos", "task.tag=upos", *FEATURES, data=options)
        assert result.errors == ""
        assert result.metrics["accuracy"] == 1


def test_an_error_ends_a_run_with_one_line(data, run):
    file = data / "ud" / "xx_toy-ud-dev.conllu"
    file.write_text(of_heads([0], [2, 3, 1, 0]))
    result = run("task=pos", "task.tag=upos", *FEATURES, data=("data=ud", "data.treebank=xx_toy"))
    assert result.status == 2
    assert result.errors == (
        f"error: {file}, line 3: heads form a cycle, 1 (a) -> 2 (b) -> 3 (c) -> 1 (a), expected a tree\n"
    )


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="needs STRUCTSPARSE_DATA")
@pytest.mark.parametrize(("name", "share"), [("tr_imst", 0.05), ("ja_gsd", 0.11), ("en_ewt", 0.023)])
def test_real_treebanks_are_found_by_name(name, share):
    corpus = ud(name, "auto")
    assert isinstance(corpus, TreebankSplits)
    assert corpus.rule == "upos"
    assert f"non-projective are {share:.1%} of the trees" in corpus.describe()[0]
    path = str(Path("ud") / f"{name}-ud-test.conllu")
    assert contents(files(path, **{**OPTIONS, "test": path}).test) == contents(corpus.test)
