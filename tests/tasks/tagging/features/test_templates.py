"""Templates, attributes, and the index of features: against plain string joining."""

import hashlib
import re

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.features.attributes import OF_WORD, attribute, case, digit, punctuation, shape
from structsparse.features.keys import _digest
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import expand, parse


def sentences(*lines: str, source: str = "memory") -> Sentences:
    """Sentences of word/pos tokens."""
    tokens = [[token.split("/") for token in line.split()] for line in lines]
    flat = [token for line in tokens for token in line]
    offsets = np.r_[0, np.cumsum([len(line) for line in tokens])]
    columns = {name: Column.from_strings([token[k] for token in flat]) for k, name in enumerate(("word", "pos"))}
    return Sentences(columns, offsets, source, ())


CORPUS = sentences(
    "the/D New/N York/N Times/N of/P 1,250/C", "the/D the/D", "a/D", "New/N of/P York/N a/D way/N", "aw/N ay/N the/D"
)


def joined(corpus: Sentences, atoms) -> list[str]:
    """The slow route: features as joined strings, boundaries spelled out."""
    values = {name: attribute(corpus, name) for name, _ in atoms}
    features = []
    for begin, end in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True):
        for token in range(begin, end):
            parts = []
            for name, offset in atoms:
                place = token + offset
                if place < begin:
                    parts.append(f"BEFORE {begin - place}")
                elif place >= end:
                    parts.append(f"AFTER {place - end + 1}")
                else:
                    parts.append("=" + values[name].values[values[name].codes[place]])
            features.append("\x00".join(parts))
    return features


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("word[0]", ["word[0]"]),
        ("word[+1]", ["word[1]"]),
        ("suffix3[0] & pos[-1]", ["suffix3[0] & pos[-1]"]),
        ("pos[-1] & pos[0]", ["pos[-1..0]"]),
        ("pos[-1..1] & word[0]", ["pos[-1..1] & word[0]"]),
        ("1-grams of word[-1..1]", ["word[-1]", "word[0]", "word[1]"]),
        ("2-grams of word[-1..1]", ["word[-1..0]", "word[0..1]"]),
    ],
)
def test_a_line_expands_to_named_templates(line, names):
    assert [template.name for template in parse(line)] == names


def test_a_name_pasted_back_is_the_same_template():
    for template in expand(["1-3-grams of pos[-2..2]", "word[0] & pos[1] & pos[2]", "shape[-1]"]):
        assert parse(template.name) == [template]


def test_the_papers_chunking_templates_are_96():
    lines = ["1-5-grams of pos[-5..5]", "1-3-grams of word[-5..5]", "1-2-grams of shape[-5..5]"]
    assert len(expand(lines)) == 45 + 30 + 21


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["word"], "'word' is not understood"),
        (["word[1..-1]"], "runs backwards"),
        (["word[0] & word[0]"], "twice"),
        (["word[0]", "1-grams of word[-1..1]"], "'word\\[0\\]' is given twice"),
        (["4-grams of pos[-1..1]"], "no 4- to 4-grams fit a window of 3"),
        ([], "is empty"),
    ],
)
def test_a_bad_template_is_named(lines, said):
    with pytest.raises(UserError, match=said):
        expand(lines)


def test_shapes_are_those_of_the_paper():
    assert shape("Confidence") == "Aa"
    assert shape("2,664,098") == "0,0+,0+"
    assert shape("McDonald's") == "AaAa'a"


def test_character_classes():
    assert [case(w) for w in ("IBM", "Ibm", "ibm", "iBM", "A", "12")] == [
        "upper",
        "title",
        "lower",
        "mixed",
        "initial",
        "none",
    ]
    assert [digit(w) for w in ("1998", "12", "a1", "a")] == ["year", "all", "some", "none"]
    assert [punctuation(w) for w in ("...", "a.", "a")] == ["all", "some", "none"]


def test_affixes_of_short_words_collide_with_none():
    words = ["a", "ab", "abc", "abcd"]
    for size in range(1, 5):
        for kind in ("prefix", "suffix"):
            affix = OF_WORD[f"{kind}{size}"]
            whole = {affix(word) for word in words if len(word) < size}
            cut = {affix(word) for word in words if len(word) >= size}
            assert not whole & cut


@pytest.mark.parametrize(
    "line",
    ["word[0]", "word[-1..0]", "pos[-2..2]", "lower[0] & suffix2[1]", "word[-3] & word[3]", "case[0] & pos[-1]"],
)
def test_keys_group_tokens_exactly_as_joined_strings_do(line):
    (template,) = parse(line)
    index = TokenIndex.fit(CORPUS, [template])
    bags = index.bags(CORPUS)
    slow = joined(CORPUS, template.atoms)
    assert len(bags.ids) == CORPUS.tokens
    assert len(index) == len(set(slow))
    assert len(set(zip(slow, bags.ids.tolist(), strict=True))) == len(index)


def test_rows_of_a_template_are_contiguous_and_most_frequent_first():
    index = TokenIndex.fit(CORPUS, expand(["word[0]", "1-2-grams of pos[-1..1]"]))
    bags = index.bags(CORPUS)
    counts = np.bincount(bags.ids, minlength=len(index))
    assert counts.min() >= 1
    for begin, end in zip(index.offsets[:-1], index.offsets[1:], strict=True):
        assert (np.diff(counts[begin:end]) <= 0).all()
        assert (np.diff(index.keys[begin:end].astype(object)) > 0).all()
        assert sorted(index.rows[begin:end]) == list(range(begin, end))
    assert all((np.diff(bags.ids[a:b]) > 0).all() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True))


def test_rare_features_are_left_out():
    index = TokenIndex.fit(CORPUS, expand(["word[0]"]), min_count=2)
    assert index.describe(np.arange(len(index)), CORPUS, index.bags(CORPUS))[0] == "word[0]=the"
    assert len(index) == 5  # the New York of a
    with pytest.raises(UserError, match="no feature of 1 templates occurs 99 times"):
        TokenIndex.fit(CORPUS, expand(["word[0]"]), min_count=99)
    with pytest.raises(UserError, match="at least 1"):
        TokenIndex.fit(CORPUS, expand(["word[0]"]), min_count=0)


def test_unseen_features_are_dropped():
    index = TokenIndex.fit(CORPUS, expand(["word[0]", "pos[0]"]))
    bags = index.bags(sentences("zebra/D the/Q zebra/Q"))
    assert np.diff(bags.offsets).tolist() == [1, 1, 0]


def test_keeping_rows_equals_dropping_the_dead_ones_from_the_bags():
    index = TokenIndex.fit(CORPUS, expand(["word[0]", "pos[-1..0]", "shape[0]"]))
    alive = np.arange(len(index)) % 3 != 0
    smaller, new_row = index.keep(alive)
    expected = index.bags(CORPUS).renumber(new_row)
    found = smaller.bags(CORPUS)
    assert len(smaller) == alive.sum()
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()


def test_a_feature_is_spelled_by_a_token_where_it_occurs():
    index = TokenIndex.fit(CORPUS, expand(["word[-1..0]"]))
    bags = index.bags(CORPUS)
    spelled = index.describe(np.arange(len(index)), CORPUS, bags)
    assert "word[-1]=New & word[0]=York" in spelled
    assert "word[-1]=<begin-1> & word[0]=the" in spelled
    assert "word[-1]=a & word[0]=way" in spelled  # and it is not the feature of aw ay
    assert "word[-1]=aw & word[0]=ay" in spelled
    assert len(set(spelled)) == len(spelled)


def test_an_unknown_attribute_is_named_with_those_there_are():
    with pytest.raises(UserError, match=re.escape("attribute 'stem' is neither a column nor made from the word")):
        TokenIndex.fit(CORPUS, expand(["stem[0]"]))


def test_value_hashes_are_the_same_everywhere():
    """Artifacts hold hashes: they must not change with the process or the machine's byte order."""
    assert _digest("=the") == hashlib.blake2b(b"=the", digest_size=8).digest()
