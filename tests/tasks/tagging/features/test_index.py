"""The index of features against the same in plain numpy: sorting, binary search, one template after the other."""

import hashlib

import numpy as np
import pytest

from structsparse.corpora.columns import Column, Sentences
from structsparse.features.attributes import attribute
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import expand

TEMPLATES = [
    "1-3-grams of pos[-3..2]",
    "1-2-grams of word[-5..5]",
    "shape[0]",
    "word[0] & suffix2[-1] & pos[4]",
    *(f"prefix{size}[{size}]" for size in range(1, 5)),
]


def drawn(seed: int, count: int = 60, values: int = 40) -> Sentences:
    """Sentences of 1 to 9 tokens, most of their values rare."""
    draw = np.random.default_rng(seed)
    offsets = np.r_[0, np.cumsum(draw.integers(1, 10, count))]
    words = [f"{'aB1.'[k % 4]}{k}é" for k in (values * draw.random(offsets[-1]) ** 2).astype(int)]
    tags = [f"T{k}" for k in draw.integers(0, 5, offsets[-1])]
    return Sentences({"word": Column.from_strings(words), "pos": Column.from_strings(tags)}, offsets, "drawn")


# --- the second route


def hashed(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def keys_of(sentences: Sentences, template) -> np.ndarray:
    """uint64 [tokens]"""
    keys = np.empty(sentences.tokens, np.uint64)
    for begin, end in zip(sentences.offsets[:-1], sentences.offsets[1:], strict=True):
        for token in range(begin, end):
            key = hashed(template.name)
            for name, shift in template.atoms:
                place, column = token + shift, attribute(sentences, name)
                if place < begin:
                    value = f"begin-{begin - place}"
                elif place >= end:
                    value = f"end+{place - end + 1}"
                else:
                    value = "=" + column.values[column.codes[place]]
                with np.errstate(over="ignore"):
                    key = (key ^ hashed(value)) * np.uint64(0x9E3779B97F4A7C15)
                key ^= key >> np.uint64(32)
            keys[token] = key
    return keys


def fitted(sentences: Sentences, templates, min_count: int) -> tuple[list, list]:
    """The keys of each template, ascending, and their rows: by falling count, then by where they are met first."""
    blocks, orders, begin = [], [], 0
    for template in templates:
        keys, first, counts = np.unique(keys_of(sentences, template), return_index=True, return_counts=True)
        keys, first, counts = (of[counts >= min_count] for of in (keys, first, counts))
        row = np.empty(len(keys), np.int64)
        row[np.lexsort((first, -counts))] = np.arange(begin, begin + len(keys))
        blocks.append(keys)
        orders.append(row)
        begin += len(keys)
    return blocks, orders


def bags_of(sentences: Sentences, templates, blocks, orders) -> list[list[int]]:
    tables = [dict(zip(keys.tolist(), rows.tolist(), strict=True)) for keys, rows in zip(blocks, orders, strict=True)]
    columns = [keys_of(sentences, template).tolist() for template in templates]
    tokens = zip(*columns, strict=True)
    return [[t[key] for t, key in zip(tables, keys, strict=True) if key in t] for keys in tokens]


def as_lists(bags) -> list[list[int]]:
    return [part.tolist() for part in np.split(bags.ids, bags.offsets[1:-1])]


# --- the tests


@pytest.mark.parametrize("min_count", [1, 2, 5])
@pytest.mark.parametrize("seed", range(2))
def test_the_index_and_its_bags_are_those_of_plain_numpy(seed, min_count):
    templates, train, test = expand(TEMPLATES), drawn(seed), drawn(seed + 100, values=60)
    index = TokenIndex.fit(train, templates, min_count)
    blocks, orders = fitted(train, templates, min_count)
    assert index.offsets.tolist() == [0, *np.cumsum([len(block) for block in blocks])]
    assert (index.keys == np.concatenate(blocks)).all()
    assert (index.rows == np.concatenate(orders)).all()
    assert (index.keys.dtype, index.rows.dtype) == (np.uint64, np.int32)
    for part in (train, test):
        bags = index.bags(part)
        assert (bags.ids.dtype, bags.offsets.dtype) == (np.int32, np.int64)
        assert as_lists(bags) == bags_of(part, templates, blocks, orders)
        assert bags.ids.flags.owndata or bags.ids.base is None  # nothing larger is kept alive behind them


def test_some_sentences_in_any_order_have_the_bags_they_have_among_all():
    corpus = drawn(3)
    index = TokenIndex.fit(drawn(4), expand(TEMPLATES))
    whole, chosen = as_lists(index.bags(corpus)), np.array([7, 0, 59, 12, 7])
    expected = [bag for s in chosen for bag in whole[corpus.offsets[s] : corpus.offsets[s + 1]]]
    assert as_lists(index.find(index.hashed(corpus), chosen)) == expected
    assert as_lists(index.bags(corpus.select(chosen))) == expected  # values that none of them has are no matter


def test_the_occurrences_of_every_row_are_counted():
    bags = TokenIndex.fit(drawn(6), expand(TEMPLATES), 2).bags(drawn(7))
    rows = int(bags.ids.max()) + 3
    assert np.array_equal(bags.counts(rows), np.bincount(bags.ids, minlength=rows))


def test_templates_without_a_living_feature_find_nothing():
    corpus = drawn(5)
    index = TokenIndex.fit(corpus, expand(TEMPLATES))
    alive = np.zeros(len(index), bool)
    alive[index.offsets[3] : index.offsets[4]] = True
    smaller, new_row = index.keep(alive)
    assert as_lists(smaller.bags(corpus)) == as_lists(index.bags(corpus).renumber(new_row))
    nothing, _ = index.keep(np.zeros(len(index), bool))
    assert len(nothing.bags(corpus).ids) == 0
