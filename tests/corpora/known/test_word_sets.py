"""Sets of word pairs and analogies: formats, and what is wrong with bad files."""

import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.known import word_sets
from structsparse.corpora.known.word_sets import Analogies, WordPairs, known_pairs, read_set

ANALOGIES = ": capital\nRome Italy Paris France\n: gram1-plural\ncat cats dog dogs\nbig bigger old older\n"


TABS, SPACES, HEADER = "cat\tdog\t7.5\nold\tnew\t1\n", "cat dog 7.5\n\nold new 1", "w1,w2,score\ncat,dog,7.5\nold,new,1"


@pytest.mark.parametrize("text", [TABS, SPACES, HEADER])
def test_pairs_are_read_from_columns(text, tmp_path):
    path = tmp_path / "EN-SET.txt"
    path.write_text(text)
    assert read_set(path) == WordPairs("SET", (("cat", "dog", 7.5), ("old", "new", 1.0)))


def test_analogies_are_read_by_kind(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(ANALOGIES)
    read = read_set(path)
    assert isinstance(read, Analogies)
    assert read.questions["semantic"] == (("Rome", "Italy", "Paris", "France"),)
    assert read.questions["syntactic"] == (("cat", "cats", "dog", "dogs"), ("big", "bigger", "old", "older"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat\tdog\n", "line 1: has 2 columns, expected word, word and score"),
        ("cat\tdog\t1\nold\tnew\tfew\n", "line 2: the score 'few' is no number"),
        ("cat\tdog\t1\n", "has 1 pairs of words"),
        ("", "has 0 pairs of words"),
        (": capital\nRome Italy Paris\n", "line 2: has 3 words"),
    ],
)
def test_bad_sets_get_one_sentence(text, message, tmp_path):
    path = tmp_path / "set.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_set(path)


def test_known_sets_are_those_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path))
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "cache"))
    assert known_pairs("test") == []
    assert word_sets.known_analogies() is None
    (tmp_path / "wordsim").mkdir()
    (tmp_path / "wordsim" / "EN-RG-65.txt").write_text("a\tb\t1\nb\tc\t2\n")
    (tmp_path / "analogy").mkdir()
    (tmp_path / "analogy" / "questions-words.txt").write_text(ANALOGIES)
    assert [pairs.name for pairs in known_pairs("test")] == ["RG-65"]
    assert known_pairs("dev") == []
    assert len(word_sets.known_analogies().questions["syntactic"]) == 2


@pytest.mark.corpus
def test_the_real_sets_have_their_sizes():
    sizes = {pairs.name: len(pairs.pairs) for part in ("dev", "test") for pairs in known_pairs(part)}
    assert sizes["WS-353-ALL"] == 353
    assert sizes["MEN-TR-3k"] == 3000
    assert len(sizes) == 12
    questions = word_sets.known_analogies().questions
    assert (len(questions["syntactic"]), len(questions["semantic"])) == (10_675, 8_869)
