"""Sentences from lists: every accepted shape gives the same columns, every other is refused in one sentence."""

import re

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.from_lists import existing_file, sentences_from_lists

WORDS = [["New", "York"], [], ["is"]]


def test_words_become_one_column():
    sentences = sentences_from_lists(WORDS, ("word",))
    assert sentences.columns["word"].strings() == ["New", "York", "is"]
    assert sentences.offsets.tolist() == [0, 2, 2, 3]
    again = sentences_from_lists((tuple(sentence) for sentence in WORDS), ("word",))  # any iterable
    assert again.columns["word"].strings() == ["New", "York", "is"]
    arrays = sentences_from_lists([np.array(["New", "York"])], ("word",))
    assert arrays.columns["word"].strings() == ["New", "York"]


@pytest.mark.parametrize(
    "token", [("York", "NOUN", 2), ["York", "NOUN", "2"], {"pos": "NOUN", "word": "York", "size": 2, "more": None}]
)
def test_tokens_of_several_columns_are_tuples_lists_or_dicts(token):
    sentences = sentences_from_lists([[token, token]], ("word", "pos", "size"))
    assert {name: column.strings() for name, column in sentences.columns.items()} == {
        "word": ["York"] * 2, "pos": ["NOUN"] * 2, "size": ["2"] * 2,
    }  # fmt: skip


def test_no_sentence_and_no_column_are_possible():
    assert len(sentences_from_lists([], ("word", "pos"))) == 0
    assert sentences_from_lists(WORDS, ()).offsets.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("sentences", "columns", "message"),
    [
        ("New York", ("word",), "got 'New York'; this model expects a list of sentences, each a list of words (str)"),
        (["New", "York"], ("word",), "sentence 1 is 'New'; this model expects a list of sentences, each a list of"),
        ({"word": ["New"]}, ("word",), "got {'word': ['New']}; this model"),
        (None, ("word",), "got None;"),
        ([["New"], [None]], ("word",), "a token of sentence 2 is None;"),
        ([[b"New"]], ("word",), "a token of sentence 1 is b'New';"),
        ([[True]], ("word",), "a token of sentence 1 is True;"),
        ([["New"]], ("word", "pos"), "is 'New'; this model expects a list of sentences, each a list of tokens, each a"),
        ([["ab"]], ("word", "pos"), "each a tuple (word, pos) or a dict with these keys"),  # a string is no tuple
        ([[("New",)]], ("word", "pos"), "a token of sentence 1 is ('New',);"),
        ([[{"word": "New"}]], ("word", "pos"), "a token of sentence 1 is {'word': 'New'};"),
        ([[("New", None)]], ("word", "pos"), "a token of sentence 1 is ('New', None);"),
        (
            [["a"], 7],
            ("size",),
            "sentence 2 is 7; this model expects a list of sentences, each a list of values of size",
        ),
    ],
)
def test_other_shapes_are_refused_in_one_sentence(sentences, columns, message):
    with pytest.raises(UserError, match=re.escape(message)):
        sentences_from_lists(sentences, columns)


def test_a_path_that_is_no_file_is_refused_with_what_is_expected(tmp_path):
    with pytest.raises(UserError, match=r"'New York' is not a file; .* list of words \(str\), or the path of a file"):
        existing_file("New York", ("word",))
    assert existing_file(str(tmp_path), ()) == tmp_path
