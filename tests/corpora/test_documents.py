"""Documents: tokens and their places, sentences, selection; running text for word clusters."""

import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structsparse.base.errors import UserError
from structsparse.corpora.documents import (
    Constituents,
    DocumentReading,
    Documents,
    DocumentSplits,
    coded_tokens,
    from_tokens,
    running_text,
    tokenize,
)

TEXTS = [
    "Mr. Smith paid $3.50, i.e. nothing.  He LEFT!\nWhy?",
    "",
    "--- ... !!",
    "Straße 12b_c und İstanbul: Ärger. “Ünïcode”, he said. 3com 42 _x_ 9",
    "one two\n\nthree four. Five",
]


def documents(reading=None) -> Documents:
    names = [f"file{k}" for k in range(len(TEXTS))]
    return tokenize(names, TEXTS, np.arange(len(TEXTS)) % 2, ("no", "yes"), reading)


def words_of(documents: Documents, k: int) -> list[str]:
    begin, end = documents.offsets[k : k + 2]
    return [documents.words[code] for code in documents.tokens[begin:end]]


@pytest.mark.parametrize(("tokens", "pattern"), [("words", r"\w+"), ("letters", r"[a-zA-Z]\w*"), ("spaces", r"\S+")])
@pytest.mark.parametrize("lower", [True, False])
def test_tokens_match_the_pattern_at_their_places(tokens, pattern, lower):
    read = documents(DocumentReading(tokens, lower))
    for k, text in enumerate(TEXTS):
        expected = re.findall(pattern, text)
        assert words_of(read, k) == [word.lower() if lower else word for word in expected]
        places = slice(*read.offsets[k : k + 2])
        spans = zip(read.begins[places], read.ends[places], strict=True)
        assert [text[begin:end] for begin, end in spans] == expected
    assert list(read.words) == sorted(set(read.words))


def test_an_unknown_kind_of_tokens_is_refused():
    with pytest.raises(UserError, match=r"data.tokens is 'characters', expected one of words, letters, spaces"):
        DocumentReading("characters")


def test_types_that_differ_only_in_case_are_merged():
    words, codes = coded_tokens(["B", "a", "b", "A", "a"], lower=True)
    assert words == ("a", "b")
    assert codes.tolist() == [1, 0, 1, 0, 0]
    assert coded_tokens([], lower=True)[0] == ()


def test_documents_made_from_tokens_have_them_in_their_text():
    tokens = [["It", "'s", "(", "good"], [], ["No", "it"]]
    read = from_tokens(["a", "b", "c"], tokens, np.zeros(3), None)
    assert read.texts == ["It 's ( good", "", "No it"]
    for k, document in enumerate(tokens):
        assert words_of(read, k) == [word.lower() for word in document]
        places = slice(*read.offsets[k : k + 2])
        assert [read.texts[k][a:b] for a, b in zip(read.begins[places], read.ends[places], strict=True)] == document


def sentence_words(read: Documents) -> list[list[str]]:
    bounds = read.sentences().tolist()
    return [[read.words[code] for code in read.tokens[a:b]] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def test_sentences_never_go_beyond_documents():
    pytest.importorskip("sentencex")
    read = documents()
    sentences = sentence_words(read)
    assert ["he", "left"] in sentences
    assert ["mr", "smith", "paid", "3", "50", "i", "e", "nothing"] in sentences  # no end after abbreviations
    assert ["five"] in sentences
    bounds = read.sentences()
    assert bounds[0] == 0
    assert bounds[-1] == len(read.tokens)
    assert (np.diff(bounds) > 0).all()
    assert np.isin(read.offsets, bounds).all()


def test_a_missing_splitter_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(UserError, match=r"sentencex: pip install sentencex"):
        documents().sentences()


def with_structure() -> Documents:
    read = documents()
    rng = np.random.default_rng(0)
    owner, begin, end = [], [], []
    for k, size in enumerate(read.lengths.tolist()):
        for _ in range(4 if size else 0):
            a, b = np.sort(rng.choice(size + 1, 2, replace=False))
            owner, begin, end = [*owner, k], [*begin, a], [*end, b]
    phrases = Constituents(
        *(np.array(x, np.int32) for x in (owner, begin, end)), np.arange(len(owner), dtype=np.int16),
        np.arange(len(owner), dtype=np.int16), tuple(f"kind{k}" for k in range(len(owner))),
    )  # fmt: skip
    sentences = np.unique(np.concatenate([read.offsets, read.offsets[:-1] + read.lengths // 2]))
    return Documents(**{**vars(read), "constituents": phrases, "sentence_offsets": sentences})


def described(read: Documents, k: int) -> tuple:
    """All that belongs to a document, read from the arrays one by one."""
    begin, end = read.offsets[k : k + 2].tolist()
    sentences = [bound - begin for bound in read.sentences().tolist() if begin <= bound < end]
    c = read.constituents
    phrases = [(c.begin[i], c.end[i], c.value[i], c.kinds[c.kind[i]]) for i in range(len(c)) if c.document[i] == k]
    places = read.begins[begin:end].tolist(), read.ends[begin:end].tolist()
    return read.names[k], read.texts[k], words_of(read, k), places, int(read.labels[k]), sentences, phrases


@pytest.mark.parametrize("chosen", [[3, 0], [4, 3, 2, 1, 0], [0, 0, 4], [], [1]])
def test_selected_documents_keep_everything(chosen):
    read = with_structure()
    part = read.select(chosen)
    assert len(part) == len(chosen)
    assert [described(part, k) for k in range(len(part))] == [described(read, k) for k in chosen]
    assert part.words is read.words
    assert part.sentence_offsets[-1] == len(part.tokens)


def test_a_corpus_is_described_by_part():
    read = with_structure()
    corpus = DocumentSplits("toy", read, read.select([0, 1]), read.select([3]), notes=("a note",))
    lines = corpus.describe()
    assert lines[0] == f"train: 5 documents, {len(read.tokens)} words, 12 constituents, no 3, yes 2"
    assert lines[2].startswith("test: 1 documents")
    assert lines[3] == f"vocabulary: {len(read.words)} different words in train, {len(read.words)} in all"
    assert lines[-1] == "a note"
    assert corpus.classes == ("no", "yes")


def test_numbers_are_described_by_their_range():
    read = tokenize(["a", "b"], ["x y", "z"], np.array([1.5, -2.0]), None)
    assert read.describe() == "2 documents, 3 words, numbers from -2 to 1.5, mean -0.25"


def sequences(text):
    return [
        [text.words[code] for code in text.tokens[low:high].tolist()]
        for low, high in zip(text.offsets[:-1], text.offsets[1:], strict=True)
    ]


@given(texts=st.lists(st.text("abCx ", max_size=12), max_size=5), lower=st.booleans())
def test_words_that_training_lacks_end_a_sequence_of_further_text(texts, lower):
    reading = DocumentReading(lower=lower)
    corpus = tokenize(["1", "2", "3"], ["a b ab", "a c", "x"], np.zeros(3, int), ("",), reading)
    train = corpus.select([0, 1])  # x is one of its word types, but in none of its documents
    vocabulary, expected = {"a", "b", "ab", "c"}, [["a", "b", "ab"], ["a", "c"]]
    for text in texts:
        latest = []
        for word in [*(text.lower() if lower else text).split(), "x"]:
            if word in vocabulary:
                latest.append(word)
                continue
            expected += [latest] if latest else []
            latest = []
    assert sequences(running_text(train, texts, reading)) == expected
