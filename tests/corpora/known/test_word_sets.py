"""Sets of word pairs and analogies: formats, and what is wrong with bad files."""

import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.known import word_sets
from structsparse.corpora.known.word_sets import Analogies, Completion, Completions, WordPairs, known_pairs, read_set

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


QUESTIONS = """\
1a) I have it from the same source that you are both an orphan and a bachelor , and are [crying] alone in London .
1b) I have it from the same source that you are both an orphan and a bachelor , and are [residing] alone in London .
2a) It 's a [dark] night .
2b) It 's a [tall] night .
"""
ANSWERS = "1b) I have it from ... and are [residing] alone in London .\n2a) It 's a [dark] night .\n"


def completions(folder, questions=QUESTIONS, answers=ANSWERS):
    path = folder / "Holmes.machine_format.questions.txt"
    path.write_text(questions)
    if answers is not None:
        (folder / "Holmes.machine_format.answers.txt").write_text(answers)
    return path


def test_questions_of_sentence_completion_are_read_with_their_answers(tmp_path):
    read = read_set(completions(tmp_path))
    assert isinstance(read, Completions)
    assert read.name == "Holmes.machine_format"
    first, second = read.questions
    assert (first.options, first.answer) == (("crying", "residing"), 1)
    assert first.words[:3] == ("I", "have", "it")
    assert first.words[-4:] == ("are", "alone", "in", "London")
    assert second == Completion(("It", "s", "a", "night"), ("dark", "tall"), 0)
    assert [path.name for path in word_sets.sets_below(tmp_path)] == ["Holmes.machine_format.questions.txt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": None}, "there are no answers in"),
        ({"answers": "1b) the [residing] one\n"}, "has 0 answers to question 2"),
        ({"answers": ANSWERS + "2b) a [tall] one\n"}, "has 2 answers to question 2"),
        ({"answers": ANSWERS.replace("2a", "2e")}, "has 1 answers to question 2, expected one of its options"),
        ({"questions": QUESTIONS + "2c) It 's a [long] night .\n"}, "some questions have 2 options and others 3"),
        ({"questions": QUESTIONS + "2b) It 's a [long] night .\n"}, "line 5: question 2 has a second option b"),
        ({"questions": QUESTIONS + "3a) no brackets\n"}, "line 5: expected an option such as"),
    ],
)
def test_damaged_questions_of_sentence_completion_get_one_sentence(changes, message, tmp_path):
    with pytest.raises(UserError) as refused:
        read_set(completions(tmp_path, **changes))
    assert message in str(refused.value)


def test_known_questions_of_sentence_completion_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path))
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "cache"))
    assert word_sets.known_completions() is None
    (tmp_path / "completion").mkdir()
    completions(tmp_path / "completion")
    assert len(word_sets.known_completions().questions) == 2
