"""What is said of trees, against plain definitions."""

import io
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structsparse.base.errors import UserError
from structsparse.corpora.conllu import read_treebank, write_treebank
from structsparse.corpora.treebank import nonprojective, punctuation, punctuation_rule
from structsparse.features.attributes import attribute
from tests.support.conllu import contents, naive, of_heads, row, sentences, text_of, trees


def read(text, **options):
    return read_treebank(io.BytesIO(text.encode()), **options)


def below(word: int, head: int, heads: list[int]) -> bool:
    """Whether a path leads from the word up to the head."""
    while word and word != head:
        word = heads[word - 1]
    return word == head


@given(st.lists(trees(9), min_size=1, max_size=3))
def test_an_arc_is_projective_if_all_words_between_its_ends_are_below_its_head(found):
    expected = [
        any(not below(between, head, heads) for between in range(min(word, head) + 1, max(word, head)))
        for heads in found
        for word, head in enumerate(heads, 1)
    ]
    offsets = np.cumsum([0, *map(len, found)])
    assert nonprojective(np.concatenate(found), offsets).tolist() == expected


@given(trees(9))
def test_some_arc_is_not_projective_just_if_two_arcs_cross(heads):
    """With the arcs from the root, at place 0."""
    arcs = [(min(word, head), max(word, head)) for word, head in enumerate(heads, 1)]
    crossing = any(a < c < b < d for a, b in arcs for c, d in arcs)
    assert nonprojective(np.array(heads), np.array([0, len(heads)])).any() == crossing


def test_nothing_is_not_projective_where_there_is_nothing():
    assert nonprojective(np.zeros(0, int), np.zeros(1, int)).tolist() == []


@given(st.lists(sentences(), min_size=1, max_size=4), st.data())
def test_selected_sentences_read_and_are_written_as_if_the_others_had_not_been_there(found, data):
    chosen = data.draw(st.lists(st.integers(0, len(found) - 1), max_size=5))
    part = read(text_of(found)).select(np.array(chosen, int))
    text = text_of([found[k] for k in chosen])
    assert contents(part) == (naive(text) if chosen else [])
    output = io.BytesIO()
    write_treebank(output, part)
    assert output.getvalue().decode() == text
    lines = text_of(found).split("\n")
    assert [lines[line - 1].split("\t")[1] for line in part.lines] == part.columns["word"].strings()


def test_a_mask_and_a_slice_select_too():
    treebank = read(of_heads([0], [0, 1], [0, 1, 2]))
    assert treebank.select(np.array([True, False, True])).heads.tolist() == [0, 0, 1, 2]
    assert treebank.select(slice(1, None)).heads.tolist() == [0, 1, 0, 1, 2]


def test_what_is_said_of_a_treebank():
    treebank = read(of_heads([0, 1], [3, 0, 2, 1], [0, 0]))
    assert treebank.describe() == (
        "3 sentences, 8 tokens; non-projective are 33.3% of the trees, 25.0% of the arcs; relations: 1; "
        "trees with several roots: 1"
    )
    blind = read(text_of([[row(1)]]), heads=False)
    assert blind.describe() == "1 sentences, 1 tokens, no trees"


def test_words_have_the_attributes_that_templates_know():
    treebank = read(text_of([[row(1, "Haus-7", "haus", "NOUN", "NN", head=0)]]))
    assert attribute(treebank, "shape").strings() == ["Aa-0"]
    assert attribute(treebank, "xpos").strings() == ["NN"]


MARKS = {".": True, "?!": True, "«": True, "…": True, "—": True, "_": True, "$": False, "+": False, "a.": False}


def test_punctuation_is_a_part_of_speech_or_nothing_but_marks():
    forms = list(MARKS)
    rows = [row(k, form, upos="PUNCT" if form == "$" else "X", head=k - 1) for k, form in enumerate(forms, 1)]
    treebank = read(text_of([rows]))
    assert punctuation(treebank, "upos").tolist() == [form == "$" for form in forms]
    assert punctuation(treebank, "characters").tolist() == list(MARKS.values())
    assert punctuation_rule(treebank) == "upos"
    assert punctuation_rule(read(text_of([[row(1, upos="Punc", head=0)]]))) == "characters"
    with pytest.raises(UserError, match=r"data.punctuation is 'xpos', expected auto, upos or characters"):
        punctuation(treebank, "xpos")


def test_parts_of_other_sizes_do_not_make_a_treebank():
    treebank = read(of_heads([0, 1], [0]))
    for name in ("heads", "lines", "blocks"):
        with pytest.raises(ValueError, match=f"1 {name}, the sentences need"):
            type(treebank)(**{**vars(treebank), name: getattr(treebank, name)[:1]})


def test_parts_of_a_part_are_in_order():
    treebank = read(of_heads([0, 1], [0]))
    assert [*pairwise(treebank.select([1, 0]).offsets.tolist())] == [(0, 1), (1, 3)]
