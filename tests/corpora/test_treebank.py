"""Treebanks: projectivity and punctuation against plain definitions, selection, descriptions."""

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
def test_an_arc_is_projective_if_all_words_between_its_ends_are_below_its_head(forest):
    expected = [
        any(not below(between, head, heads) for between in range(min(word, head) + 1, max(word, head)))
        for heads in forest
        for word, head in enumerate(heads, 1)
    ]
    offsets = np.cumsum([0, *map(len, forest)])
    assert nonprojective(np.concatenate(forest), offsets).tolist() == expected


@given(trees(9))
def test_a_tree_is_nonprojective_if_and_only_if_two_arcs_cross(heads):
    """The arcs from the root, at position 0, included."""
    arcs = [(min(word, head), max(word, head)) for word, head in enumerate(heads, 1)]
    crossing = any(a < c < b < d for a, b in arcs for c, d in arcs)
    assert nonprojective(np.array(heads), np.array([0, len(heads)])).any() == crossing


def test_an_empty_treebank_has_no_nonprojective_arc():
    assert nonprojective(np.zeros(0, int), np.zeros(1, int)).tolist() == []


@given(st.lists(sentences(), min_size=1, max_size=4), st.data())
def test_selected_sentences_are_written_as_if_there_were_no_others(lines_of, data):
    chosen = data.draw(st.lists(st.integers(0, len(lines_of) - 1), max_size=5))
    part = read(text_of(lines_of)).select(np.array(chosen, int))
    text = text_of([lines_of[k] for k in chosen])
    assert contents(part) == (naive(text) if chosen else [])
    output = io.BytesIO()
    write_treebank(output, part)
    assert output.getvalue().decode() == text
    lines = text_of(lines_of).split("\n")
    assert [lines[line - 1].split("\t")[1] for line in part.lines] == part.columns["word"].strings()


def test_a_mask_and_a_slice_select_too():
    treebank = read(of_heads([0], [0, 1], [0, 1, 2]))
    assert treebank.select(np.array([True, False, True])).heads.tolist() == [0, 0, 1, 2]
    assert treebank.select(slice(1, None)).heads.tolist() == [0, 1, 0, 1, 2]


def test_a_treebank_is_described_by_sizes_and_shapes():
    treebank = read(of_heads([0, 1], [3, 0, 2, 1], [0, 0]))
    assert treebank.describe() == (
        "3 sentences, 8 tokens; non-projective are 33.3% of the trees, 25.0% of the arcs; relations: 1; "
        "trees with several roots: 1"
    )
    blind = read(text_of([[row(1)]]), heads=False)
    assert blind.describe() == "1 sentences, 1 tokens, no trees"


def test_words_have_the_attributes_of_tokens():
    treebank = read(text_of([[row(1, "Haus-7", "haus", "NOUN", "NN", head=0)]]))
    assert attribute(treebank, "shape").strings() == ["Aa-0"]
    assert attribute(treebank, "xpos").strings() == ["NN"]


MARKS = {".": True, "?!": True, "«": True, "…": True, "—": True, "_": True, "$": False, "+": False, "a.": False}


def test_punctuation_is_a_part_of_speech_or_all_punctuation_characters():
    forms = list(MARKS)
    rows = [row(k, form, upos="PUNCT" if form == "$" else "X", head=k - 1) for k, form in enumerate(forms, 1)]
    treebank = read(text_of([rows]))
    assert punctuation(treebank, "upos").tolist() == [form == "$" for form in forms]
    assert punctuation(treebank, "characters").tolist() == list(MARKS.values())
    assert punctuation_rule(treebank) == "upos"
    assert punctuation_rule(read(text_of([[row(1, upos="Punc", head=0)]]))) == "characters"
    with pytest.raises(UserError, match=r"data.punctuation is 'xpos', expected auto, upos or characters"):
        punctuation(treebank, "xpos")


def test_arrays_of_other_sizes_are_refused():
    treebank = read(of_heads([0, 1], [0]))
    for name in ("heads", "lines", "blocks"):
        with pytest.raises(ValueError, match=f"1 {name}, the sentences need"):
            type(treebank)(**{**vars(treebank), name: getattr(treebank, name)[:1]})


def test_selected_sentences_have_offsets_in_order():
    treebank = read(of_heads([0, 1], [0]))
    assert [*pairwise(treebank.select([1, 0]).offsets.tolist())] == [(0, 1), (1, 3)]
