"""Running text for word vectors: files, gzipped files and folders, and what is wrong with bad ones."""

import gzip

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.known.running_text import RunningText, running_text

OPTIONS = {
    "sentences": "lines",
    "tokens": "words",
    "lower": True,
    "zeros": True,
    "punctuation": True,
    "limit": None,
    "planted": {},
}
LINES = "The cat has 12 lives.\nA dog has 1,000.5\n"
WORDS = "the cat has 0 lives . | a dog has 0 |"


def read(path, **options) -> RunningText:
    return running_text(str(path), **{**OPTIONS, **options})


def plain(corpus: RunningText) -> str:
    names = ["|", *corpus.text.words]
    return " ".join(names[code] for code in corpus.text.codes.tolist())


@pytest.mark.parametrize("kind", ["plain", "gzip", "folder"])
def test_text_is_read_from_files_and_folders(kind, tmp_path):
    path = tmp_path / "text"
    if kind == "plain":
        path.write_text(LINES)
    elif kind == "gzip":
        path.write_bytes(gzip.compress(LINES.encode()))
    else:
        first, second = LINES.splitlines()
        (path / "sub").mkdir(parents=True)
        (path / "a.txt").write_text(first)  # the last line may lack its end
        (path / "sub" / "b.txt.gz").write_bytes(gzip.compress(second.encode()))
        (path / ".hidden").write_text("nothing")
    assert plain(read(path)) == WORDS


def test_numbers_and_capitals_are_kept_on_demand(tmp_path):
    (tmp_path / "text").write_text(LINES)
    corpus = read(tmp_path / "text", zeros=False, lower=False)
    assert plain(corpus) == "The cat has 12 lives . | A dog has 1,000.5 |"


def test_punctuation_can_be_left_out(tmp_path):
    (tmp_path / "text").write_text('"A cat," he said -- 3 times.\n...\nThe <unk> end!')
    assert plain(read(tmp_path / "text", punctuation=False)) == "a cat he said 0 times | the <unk> end |"
    (tmp_path / "dots").write_text("... !")
    with pytest.raises(UserError, match="has no words, only punctuation"):
        read(tmp_path / "dots", punctuation=False)


def test_sentences_of_paragraphs_end_with_their_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("One sentence. Another\none")
    assert plain(read(tmp_path, sentences="text")) == "one sentence . | another one | one sentence . | another one |"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no words"),
        (b"\xff\xfe\x00binary", "is not UTF-8"),
        (b"word\x00\x00\x00word", "expected text, not a binary file"),
        (gzip.compress(b"some words " * 1000, mtime=0)[:-20], "cut short or damaged"),
    ],
)
def test_bad_files_get_one_sentence(content, message, tmp_path):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "text")


def test_missing_files_and_empty_folders_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.txt: no such file"):
        read("nowhere.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="a folder without files"):
        read(tmp_path / "empty")


def test_a_planted_corpus_has_the_words_of_each_node():
    planted = {"seed": 1, "trees": 2, "branching": 2, "size": 3, "sentences": 400}
    corpus = running_text(None, **{**OPTIONS, "planted": planted})
    assert corpus.name == "planted_word_trees"
    assert len(corpus.text.ends) == 400
    assert {*corpus.truth} == {"1", "2", *(f"{t}.{c}" for t in "12" for c in "12"),
                               *(f"{t}.{c}.{g}" for t in "12" for c in "12" for g in "12")}  # fmt: skip
    assert len(corpus.truth["1"]) == 7 * 3
    assert {*corpus.truth["1.2.1"]} < {*corpus.truth["1.2"]} < {*corpus.truth["1"]}
    assert not {*corpus.truth["1"]} & {*corpus.truth["2"]}
    nodes = [{*corpus.truth[name]} for name in ("1", "2")]
    names, sentence, both = [*corpus.text.words], set(), 0
    for code in corpus.text.codes.tolist():
        if code:
            sentence.add(names[code - 1])
        else:
            both += all(sentence & words for words in nodes)
            sentence = set()
    assert both == 0, "a sentence is about one tree"
    again = running_text(None, **{**OPTIONS, "planted": planted})
    np.testing.assert_array_equal(again.text.codes, corpus.text.codes)


@pytest.mark.parametrize("name", ["trees", "branching", "size", "sentences"])
def test_a_planted_corpus_needs_positive_numbers(name):
    planted = {"seed": 1, "trees": 2, "branching": 2, "size": 3, "sentences": 400, name: 0}
    with pytest.raises(UserError, match=f"data.planted.{name} is 0"):
        running_text(None, **{**OPTIONS, "planted": planted})
