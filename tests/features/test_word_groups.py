"""Groups of words against Python sets, and what their random controls preserve."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Constituents, DocumentSplits, tokenize
from structsparse.features import word_groups as groups
from structsparse.features import words
from structsparse.features.clusters.brown import brown_tree
from structsparse.features.clusters.ward import ward_tree
from structsparse.features.words import bag

SENTENCES = 3  # per document, at most


def corpus(seed: int = 0, documents: int = 12, words: int = 25):
    """Random documents with known sentences and constituents; some words are not in train."""
    random = np.random.default_rng(seed)
    texts, cuts, phrases = [], [0], []
    for number in range(documents):
        begin = 0
        for _ in range(random.integers(1, SENTENCES + 1)):
            length = int(random.integers(1, 9))
            for _ in range(6):
                low, high = np.sort(random.integers(begin, begin + length + 1, 2))
                phrases.append((number, low, high, random.integers(-1, 5)))
            begin += length
            cuts.append(cuts[-1] + length)
        texts.append(" ".join(f"w{k}" for k in np.minimum(random.zipf(1.3, begin) - 1, words - 1)))
    result = tokenize([f"d{k}.txt" for k in range(documents)], texts, np.arange(documents) % 2, ("no", "yes"))
    document, begin, end, value = np.array([p for p in phrases if p[2] > p[1]], np.int64).T
    kinds = np.zeros(len(value), np.int16)
    constituents = Constituents(document.astype(np.int32), begin.astype(np.int32), end.astype(np.int32),
                                value.astype(np.int16), kinds)  # fmt: skip
    return replace(result, sentence_offsets=np.array(cuts), constituents=constituents)


def layout_of(documents, min_count: int = 1):
    half = len(documents) // 2
    train, rest = documents.select(range(half)), documents.select(range(half, len(documents)))
    return bag(DocumentSplits("random", train, rest, rest), min_count=min_count, vocabulary="all").layout


@pytest.fixture(scope="module")
def layout():
    return layout_of(corpus(documents=60), min_count=2)


def texts_of(layout, begins, ends):
    """The set of features in each span of tokens."""
    words, known = layout.train.words, set(layout.words)
    return [
        {words[code] for code in layout.train.tokens[begin:end].tolist()} & known
        for begin, end in zip(begins, ends, strict=True)
    ]


def naive(sets, weigh) -> dict[frozenset, float]:
    """The weight of each set of words; equal sets are added, single words left out."""
    groups = [frozenset(words) for words in sets if len(words) > 1]
    groups_of_word = Counter(word for group in groups for word in group)
    weights = defaultdict(float)
    for group in groups:
        weights[group] += weigh(group, groups_of_word)
    return weights


WEIGHTS = {
    "one": lambda group, groups_of_word: 1.0,
    "sqrt_size": lambda group, groups_of_word: len(group) ** 0.5,
    "overlap": lambda group, groups_of_word: len(group) / sum(groups_of_word[word] for word in group),
}


def as_sets(cover, layout) -> dict[frozenset, float]:
    """The weights of groups by their sets of words."""
    bounds, members = cover.offsets.tolist(), cover.members.tolist()
    sets = [frozenset(layout.words[row] for row in members[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    assert len(set(sets)) == len(sets)
    return dict(zip(sets, cover.weight.tolist(), strict=True))


def spans(kind, layout):
    """Where the units of a kind begin and end among the tokens."""
    train = layout.train
    if kind == "sentences":
        return train.sentences()[:-1], train.sentences()[1:]
    if kind == "documents":
        return train.offsets[:-1], train.offsets[1:]
    first = train.offsets[train.constituents.document]
    return first + train.constituents.begin, first + train.constituents.end


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", ["sentences", "documents", "constituents"])
def test_groups_are_the_sets_of_their_words(kind, weights, layout):
    cover = groups.KINDS[kind]((len(layout.words),), layout, weights=weights)
    expected = naive(texts_of(layout, *spans(kind, layout)), WEIGHTS[weights])
    assert as_sets(cover, layout) == pytest.approx(expected)
    assert len(expected) > 10


def test_only_neutral_constituents(layout):
    cover = groups.constituents((len(layout.words),), layout, neutral=True)
    begins, ends = spans("constituents", layout)
    neutral = layout.train.constituents.value == 2
    expected = naive(texts_of(layout, begins[neutral], ends[neutral]), WEIGHTS["sqrt_size"])
    assert as_sets(cover, layout) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "make_tree"), [(groups.brown, brown_tree), (groups.ward, ward_tree)])
def test_clusters_are_the_nodes_of_the_tree(layout, kind, make_tree):
    cover = kind((len(layout.words),), layout, weights="one", classes=6)
    tree, known = make_tree(layout.train, 6), set(layout.words)
    sets = [{layout.train.words[c] for c in tree.codes(node).tolist()} & known for node in range(tree.nodes)]
    assert as_sets(cover, layout) == pytest.approx(naive(sets, WEIGHTS["one"]))
    assert all(name.startswith("cluster ") for name in cover.names)


def test_the_entries_of_several_columns_count(layout):
    one = groups.sentences((len(layout.words),), layout, weights="sqrt_size")
    many = groups.sentences((len(layout.words), 4), layout, weights="sqrt_size")
    assert torch.allclose(many.weight, 2 * one.weight)
    assert torch.equal(many.size, 4 * one.size)


def test_sources_and_names_tell_the_units_of_a_group(layout):
    cover = groups.sentences((len(layout.words),), layout)
    sets = texts_of(layout, *spans("sentences", layout))
    bounds = layout.train.sentences()
    assert len(cover.source) == len(sets)
    named = set()
    for sentence, group in enumerate(cover.source.tolist()):
        if len(sets[sentence]) < 2:
            assert group == -1
            continue
        members = cover.members[cover.offsets[group] : cover.offsets[group + 1]].tolist()
        assert {layout.words[row] for row in members} == sets[sentence]
        if group not in named:  # the first unit gives the name
            named.add(group)
            document = int(np.searchsorted(layout.train.offsets, bounds[sentence], side="right")) - 1
            place = sum(layout.train.offsets[document] <= b < bounds[sentence] for b in bounds) + 1
            name = f"sentence {place} of {layout.train.names[document]}"
            more = int((cover.source == group).sum()) - 1
            assert cover.names[group] == name + (f" (and {more:,} like it)" if more else "")
    assert (cover.source == -1).any()
    assert len(cover.names[2:5]) == 3


# --- permuted words


@pytest.mark.parametrize("kind", ["frequency", "all"])
def test_permuted_groups_have_the_same_sizes_and_overlaps(kind, layout):
    real, permuted = (groups.sentences((len(layout.words),), layout, permute=p, seed=3) for p in ("none", kind))
    place = groups.permutation(layout, kind, 3)
    assert sorted(place.tolist()) == list(range(len(layout.words)))
    assert (place != np.arange(len(place))).any()
    assert torch.equal(permuted.offsets, real.offsets)
    assert torch.equal(permuted.weight, real.weight)
    assert torch.equal(permuted.multiplicity[place], real.multiplicity)
    assert permuted.members.tolist() == place[real.members.numpy()].tolist()
    unseen = layout.counts == 0
    assert unseen.any() or layout.documents.min() > 0
    assert (place[unseen] == np.flatnonzero(unseen)).all()
    if kind == "frequency":
        assert (layout.documents[place] == layout.documents).all()
    again, other = (groups.permutation(layout, kind, seed) for seed in (3, 4))
    assert (again == place).all()
    assert (other != place).any()


def test_words_that_are_not_in_training_are_not_permuted():
    layout = layout_of(corpus(4), min_count=1)
    unseen = np.flatnonzero(layout.counts == 0)
    assert len(unseen)
    for kind in ("frequency", "all"):
        assert (groups.permutation(layout, kind, 0)[unseen] == unseen).all()


# --- groups from a file


def test_groups_of_a_file(tmp_path, layout):
    path = tmp_path / "groups.json"
    path.write_text(json.dumps({"few": ["w0", "W1", "w0"], "more": ["w2", "w1", "zebra"], "none": ["w1"]}))
    with pytest.warns(UserWarning, match=r"1 words are not features and were left out: zebra"):
        cover = groups.words_file((len(layout.words),), layout, path=path)
    assert as_sets(cover, layout) == {frozenset(["w0", "w1"]): 1.0, frozenset(["w1", "w2"]): 1.0}
    assert [*cover.names] == ["few", "more"]


def test_weights_of_a_file(tmp_path, layout):
    path = tmp_path / "groups.yaml"
    path.write_text("groups: {one: [w0, w1], two: [w1], three: [w0, w1], four: [w2, w0]}\n"
                    "weights: {one: 2, two: 5, three: 0.5, four: 3}\n")  # fmt: skip
    cover = groups.words_file((len(layout.words),), layout, weights="sqrt_size", path=path)
    assert as_sets(cover, layout) == {frozenset(["w0", "w1"]): 2.5, frozenset(["w2", "w0"]): 3.0}


@pytest.mark.parametrize("text", ['{"a": ["w0"]}', '{"a": []}', "{}", '{"a": ["horse", "cow"]}'])
@pytest.mark.filterwarnings("ignore:.*are not features")
def test_a_file_without_a_group_is_refused(tmp_path, text, layout):
    path = tmp_path / "groups.json"
    path.write_text(text)
    with pytest.raises(UserError, match="there are no groups"):
        groups.words_file((len(layout.words),), layout, path=path)


# --- several kinds combined


def test_several_kinds_are_combined(layout):
    shape = (len(layout.words),)
    cover = groups.combined(
        shape, layout, parts={"documents": 2, "brown": {"factor": 0.5, "classes": 5}}, weights="one"
    )
    first = groups.documents(shape, layout)
    second = groups.brown(shape, layout, classes=5, weights="one")
    assert cover.members.tolist() == first.members.tolist() + second.members.tolist()
    assert cover.weight.tolist() == [*(2 * first.weight).tolist(), *(second.weight / 2).tolist()]
    assert [*cover.names] == [*first.names, *second.names]
    assert cover.names[-1] == second.names[len(second) - 1]
    assert cover.notes == first.notes + second.notes
    W = torch.randn(len(layout.words), dtype=torch.float64)
    assert torch.allclose(cover.norms(W), torch.cat([first.norms(W), second.norms(W)]))


@pytest.mark.parametrize("parts", [None, {}, {"horses": 1}])
def test_unknown_kinds_are_refused(parts, layout):
    with pytest.raises(UserError, match=r"groups\.parts"):
        groups.combined((len(layout.words),), layout, parts=parts)


# --- topics


def test_topics_are_their_most_probable_words(layout):
    pytest.importorskip("tomotopy")
    shape = (len(layout.words),)
    options = {"topics": 5, "top": 4, "iterations": 20}
    cover = groups.topics(shape, layout, **options)
    again = groups.topics(shape, layout, **options)
    other = groups.topics(shape, layout, **options, topic_seed=1)
    assert torch.equal(cover.members, again.members)
    assert not (len(other.members) == len(cover.members) and torch.equal(other.members, cover.members))
    assert int(cover.size.max()) <= 4
    assert all(name.startswith("topic ") for name in cover.names)


def test_planted_topics_are_found():
    """Two kinds of documents without common words."""
    pytest.importorskip("tomotopy")
    random = np.random.default_rng(0)
    sides = [["sun", "moon", "star"], ["bread", "milk", "egg"]]
    texts = [" ".join(random.choice(sides[k % 2], 30)) for k in range(40)]
    documents = tokenize([str(k) for k in range(40)], texts, np.arange(40) % 2, ("a", "b"))
    layout = bag(DocumentSplits("two", documents, documents, documents)).layout
    cover = groups.topics((6,), layout, topics=2, top=3, iterations=50)
    assert set(as_sets(cover, layout)) == {frozenset(side) for side in sides}


# --- extra features


def test_extra_features_are_sums_of_words(layout):
    documents = layout.train
    cover = groups.brown((len(layout.words),), layout, classes=6)
    names, members = groups.extra_columns(cover)
    assert names == list(cover.names)
    assert np.allclose((members**2).sum(axis=0), 1)  # the length of a word's column
    features = words.count(documents, layout.row_of, len(layout.words)) @ members
    for group in range(len(cover)):
        rows = cover.members[cover.offsets[group] : cover.offsets[group + 1]].tolist()
        members = {layout.words[row] for row in rows}
        counts = [sum(word in members for word in text.split()) for text in documents.texts]
        assert np.allclose(features[:, [group]].toarray()[:, 0], np.array(counts) / len(members) ** 0.5)


def test_clusters_up_to_a_size(layout):
    shape = (len(layout.words),)
    every = as_sets(groups.brown(shape, layout, classes=6), layout)
    small = as_sets(groups.brown(shape, layout, classes=6, largest=4), layout)
    assert 0 < len(small) < len(every)
    tree = brown_tree(layout.train, 6)
    names = groups.brown(shape, layout, classes=6, largest=4).names
    assert {name.split(" (and")[0] for name in names} <= {tree.name(k) for k in np.flatnonzero(tree.sizes <= 4)}


# --- errors


@pytest.mark.parametrize("wrong", [{"weights": "size"}, {"permute": "words"}])
def test_unknown_options_are_refused(wrong, layout):
    with pytest.raises(UserError, match=f"groups.{next(iter(wrong))} is"):
        groups.sentences((len(layout.words),), layout, **wrong)


def test_missing_trees_and_sentiments_are_refused(layout):
    bare = replace(layout, train=replace(layout.train, constituents=None))
    with pytest.raises(UserError, match="parse trees"):
        groups.constituents((len(layout.words),), bare)
    plain = replace(layout.train.constituents, value=np.full(len(layout.train.constituents), -1, np.int16))
    without = replace(layout, train=replace(layout.train, constituents=plain))
    with pytest.raises(UserError, match="sentiment"):
        groups.constituents((len(layout.words),), without, neutral=True)


def test_a_table_of_other_rows_is_refused(layout):
    with pytest.raises(UserError, match="expected a row for each"):
        groups.documents((len(layout.words) + 1,), layout)


def test_many_groups_are_made_without_spelling_their_names():
    """No list of names and no Python loop over groups."""
    documents, words = 200_000, 50
    random = np.random.default_rng(0)
    tokens = random.integers(0, words, 4 * documents).astype(np.int32)
    train = SimpleNamespace(
        tokens=tokens, offsets=np.arange(0, 4 * documents + 1, 4), words=tuple(f"w{k}" for k in range(words)),
        names=range(documents),
    )  # fmt: skip
    layout = SimpleNamespace(
        words=train.words, train=train, row_of=np.arange(words, dtype=np.int32), extra=0,
        counts=np.bincount(tokens), documents=np.bincount(tokens),
    )  # fmt: skip
    cover = groups.documents((words,), layout)
    rows = tokens.reshape(-1, 4).tolist()
    sets = {frozenset(row) for row in rows} - {frozenset([k]) for k in range(words)}
    assert len(cover) == len(sets)
    assert float(cover.weight.sum()) == sum(len(set(row)) > 1 for row in rows)
    assert not isinstance(cover.names, list)


def test_clusters_use_texts_without_labels(layout):
    shape, words = (len(layout.words),), layout.words
    text = " ".join(f"{word} {word} {other}" for word, other in zip(words, reversed(words), strict=True))
    more = replace(layout, unlabelled=(text * 20,))
    for kind in (groups.brown, groups.ward):
        assert as_sets(kind(shape, more, classes=6), more) != as_sets(kind(shape, layout, classes=6), layout)
        strange = replace(layout, unlabelled=("nobody knows these",))
        assert as_sets(kind(shape, strange, classes=6), strange) == as_sets(kind(shape, layout, classes=6), layout)
