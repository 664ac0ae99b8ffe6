"""Planted tagging: seeds, sizes and noise; the tags follow the model, and only planted templates are informative."""

import functools
import hashlib
import subprocess
import sys
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from structsparse.corpora.planted.tagging import planted_tagging
from structsparse.corpora.tags import convert, spans
from structsparse.tasks.tagging.features.templates import parse

PARTS = ("train", "dev", "test")
NAMES = ("prefix4[0]", "suffix3[0]", "suffix3[-1]", "case[0]", "pos[-1..0]")


@pytest.fixture(scope="module")
def planted():
    return planted_tagging(0)


def digest(planted):
    text = [planted.__dict__[part].columns[name].strings() for part in PARTS for name in ("word", "pos", "tag")]
    return hashlib.sha256(repr(text).encode()).hexdigest()


def test_a_seed_gives_the_same_text_in_every_process():
    program = (
        "import sys; sys.path.insert(0, '.');"
        "from tests.corpora.planted.test_tagging import digest, planted_tagging;"
        "print(digest(planted_tagging(7, 50, 20, 20)))"
    )
    command = [sys.executable, "-c", program]
    seen = {
        subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }
    assert seen == {digest(planted_tagging(7, 50, 20, 20)) + "\n"}


def test_seeds_give_different_texts_and_truths():
    one, two = planted_tagging(0, 50, 20, 20), planted_tagging(1, 50, 20, 20)
    assert digest(one) != digest(two)
    for template in NAMES:
        first, second = one.truth.tables[template], two.truth.tables[template]
        assert first.values != second.values or not np.array_equal(first.weights, second.weights)


def test_parts_have_the_requested_sizes_and_columns_of_their_own(planted):
    assert [len(part) for part in (planted.train, planted.dev, planted.test)] == [2000, 400, 400]
    small = planted_tagging(3, train=5, dev=0, test=1)
    assert [len(part) for part in (small.train, small.dev, small.test)] == [5, 0, 1]
    for part in (planted.train, planted.dev, planted.test, small.train, small.dev):
        assert list(part.columns) == ["word", "pos", "tag"]
        for column in part.columns.values():
            assert column.values == list(dict.fromkeys(column.strings()))  # none from another part
    assert (planted.train.lengths > 0).all()


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_tags_are_legal_and_spans_frequent(noise):
    for seed in range(3):
        planted = planted_tagging(seed, 300, 100, 100, noise)
        for part in (planted.train, planted.dev, planted.test):
            convert(part, "tag", "iob2", "iob2", stray="refuse")
            assert set(part.columns["tag"].values) <= set(planted.truth.labels)
            share = np.mean([tag != "O" for tag in part.columns["tag"].strings()])
            assert noise or 0.1 < share < 0.3


def test_some_spans_are_longer_than_a_token(planted):
    column = planted.train.columns["tag"]
    start, end, _ = spans(column.codes, planted.train.offsets, column.values)
    longer = np.mean(end - start > 1)
    assert 0.05 < longer < 0.5


def test_words_are_rare_ambiguous_and_not_all_seen_in_training(planted):
    words, tags, pos = (planted.train.columns[name].strings() for name in ("word", "tag", "pos"))
    counts = Counter(words)
    assert sum(count == 1 for count in counts.values()) > len(counts) / 4
    assert np.mean([word not in counts for word in planted.test.columns["word"].strings()]) > 0.1
    told = defaultdict(lambda: (set(), set()))
    for word, tag, part in zip(words, tags, pos, strict=True):
        told[word][0].add(tag)
        told[word][1].add(part)
    frequent = [told[word] for word, count in counts.items() if count >= 10]
    assert len(frequent) > 50
    assert np.mean([len(kinds) > 1 for kinds, _ in frequent]) > 0.2
    assert np.mean([len(parts) > 1 for _, parts in frequent]) > 0.9


def test_noise_changes_the_requested_share_of_tags_and_nothing_else():
    quiet, loud = planted_tagging(2, 1000, 10, 10, noise=0.0).train, planted_tagging(2, 1000, 10, 10, noise=0.1).train
    for name in ("word", "pos"):
        assert quiet.columns[name].strings() == loud.columns[name].strings()
    before, after = quiet.columns["tag"].strings(), loud.columns["tag"].strings()
    changed = np.mean([a != b for a, b in zip(before, after, strict=True)])
    assert 0.07 < changed < 0.1  # a fifth of the draws give the old tag, repairs change a few more
    default = planted_tagging(2, 1000, 10, 10).train.columns["tag"].strings()
    assert 0.003 < np.mean([a != b for a, b in zip(before, default, strict=True)]) < 0.03


def test_templates_are_names_in_the_template_language(planted):
    assert planted.templates == NAMES
    assert [parse(name)[0].name for name in planted.templates] == list(NAMES)


# An independent reading of the model: values from the surface of the words, probabilities by autograd.


class Reading:
    """Scores and statistics of a planted text under a model."""

    def __init__(self, sentences, truth):
        self.sentences, self.truth = sentences, truth
        self.tags = torch.from_numpy(sentences.columns["tag"].recoded(truth.labels).codes.astype(np.int64))

    @functools.cache  # noqa: B019
    def values(self, template):
        """The value of a template at each token, None if it needs a token outside the sentence."""
        words, pos = (self.sentences.columns[name].strings() for name in ("word", "pos"))
        starts = set(self.sentences.offsets.tolist())
        attribute, offset = template.rstrip("]").split("[")
        size = int(attribute[-1]) if attribute[-1].isdigit() else 0
        single = {
            "prefix": [word[:size] for word in words],
            "suffix": [word[-size:] for word in words],
            "case": ["lower" if word == word.lower() else "mixed" for word in words],
            "hyphen": ["-" in word for word in words],
            "pos": pos,
        }[attribute.rstrip("1234")]
        first, _, last = offset.partition("..")
        window = range(int(first), int(last or first) + 1)
        return [
            None if k in starts and -1 in window else tuple(single[k + shift] for shift in window)
            for k in range(len(words))
        ]

    @functools.cache  # noqa: B019
    def codes(self, template):
        """The distinct values of a template, and the number of each token's value."""
        index = {}
        codes = [index.setdefault(value, len(index)) for value in self.values(template)]
        return list(index), np.array(codes)

    def scores(self, tables):
        """[tokens, labels]"""
        scores = np.zeros((self.sentences.tokens, len(self.truth.labels)))
        for template, table in tables.items():
            rows = dict(zip(table.values, table.weights, strict=True))
            silence = np.zeros(len(self.truth.labels))
            index, codes = self.codes(template)
            scores += np.array([rows.get(value, silence) for value in index])[codes]
        return torch.from_numpy(scores)

    def log_partition(self, scores, transitions=None):
        """Sum over the sentences.  [tokens, labels] to []"""
        transitions = torch.from_numpy(self.truth.transitions) if transitions is None else transitions
        order = np.argsort(-self.sentences.lengths)  # the longest first, so that those alive are a slice
        first = torch.from_numpy(self.sentences.offsets[order])
        lengths = self.sentences.lengths[order]
        forward, total = scores[first] + transitions[0], 0.0
        for time in range(1, lengths[0] + 1):
            alive = int(np.count_nonzero(lengths > time))
            total = total + torch.logsumexp(forward[alive:], dim=1).sum()
            arriving = torch.logsumexp(forward[:alive, :, None] + transitions, dim=1)
            forward = arriving + scores[first[:alive] + time]
        return total

    @property
    def before(self):
        """The tag before each token.  [tokens]"""
        before = torch.roll(self.tags, 1)
        before[torch.from_numpy(self.sentences.offsets[:-1])] = 0  # as after an O
        return before

    def log_likelihood(self, tables):
        scores = self.scores(tables)
        moves = torch.from_numpy(self.truth.transitions)[self.before, self.tags]
        path = scores.gather(1, self.tags[:, None]).sum() + moves.sum()
        return float(path - self.log_partition(scores))

    def expected(self, tables):
        """The probability of every label, by the gradient of the log-partition.  [tokens, labels]"""
        scores = self.scores(tables).requires_grad_()
        self.log_partition(scores).backward()
        return scores.grad.numpy()

    def surprise(self, template, expected):
        """Mean of (labels seen - labels expected)^2 / variance over values of a template and labels, and the
        deviation to be expected of it: 1 where the model knows all that the template could tell."""
        seen = np.eye(len(self.truth.labels))[self.tags.numpy()]
        index, codes = self.codes(template)
        error, variance = np.zeros((2, len(index), len(self.truth.labels)))
        np.add.at(error, codes, seen - expected)
        np.add.at(variance, codes, expected * (1 - expected))
        told = variance > 5
        return float(np.mean(error[told] ** 2 / variance[told])), np.sqrt(2 / np.count_nonzero(told))


@pytest.fixture(scope="module")
def clean():
    """Tags without noise, and what the model expects of them."""
    torch.set_num_threads(1)
    planted = planted_tagging(1, train=2500, dev=0, test=0, noise=0.0)
    reading = Reading(planted.train, planted.truth)
    return reading, reading.expected(planted.truth.tables)


DECOYS = (
    "prefix3[0]",
    "suffix2[0]",
    "suffix1[0]",
    "prefix2[0]",
    "suffix3[-1..0]",
    "prefix4[-1]",
    "pos[0]",
    "hyphen[0]",
    "case[-1]",
)


@pytest.mark.parametrize("template", NAMES + DECOYS)
def test_given_the_model_no_template_explains_the_tags_any_further(clean, template):
    """So the draw is exact, and other templates add nothing."""
    reading, expected = clean
    surprise, deviation = reading.surprise(template, expected)
    assert abs(surprise - 1) < 4 * deviation


def test_transitions_are_as_frequent_as_expected(clean):
    reading, _ = clean
    transitions = torch.from_numpy(reading.truth.transitions).requires_grad_()
    reading.log_partition(reading.scores(reading.truth.tables), transitions).backward()
    expected = transitions.grad.numpy()  # [labels before, labels]
    seen = np.zeros_like(expected)
    np.add.at(seen, (reading.before, reading.tags), 1)
    assert (np.abs(seen - expected) <= 5 * np.sqrt(expected)).all()
    assert (seen[np.isinf(reading.truth.transitions)] == 0).all()


SHARED = [
    ("prefix4[0]", "prefix3[0]", lambda value: (value[0][:3],)),
    ("suffix3[0]", "suffix2[0]", lambda value: (value[0][1:],)),
    ("suffix3[-1]", "suffix2[0]", lambda value: (value[0][1:],)),
    ("pos[-1..0]", "pos[0]", lambda value: value[:1]),
    ("pos[-1..0]", "pos[0]", lambda value: value[1:]),
]


@pytest.mark.parametrize(("fine", "coarse", "part"), SHARED)
def test_among_values_that_share_a_part_equally_many_speak_for_each_kind(clean, fine, coarse, part):
    reading, _ = clean
    table = reading.truth.tables[fine]
    speakers = {value: np.zeros(len(reading.truth.labels)) for value in reading.values(coarse)}
    for value, weights in zip(table.values, table.weights, strict=True):
        speakers[part(value)] += weights > 0
    counts = list(speakers.values())
    assert all(np.array_equal(count, counts[0]) for count in counts)
    assert counts[0].all()


@pytest.mark.parametrize("template", NAMES)
def test_each_planted_template_is_needed(clean, template):
    reading, _ = clean
    without = {name: table for name, table in reading.truth.tables.items() if name != template}
    surprise, _ = reading.surprise(template, reading.expected(without))
    assert surprise > 10


@pytest.mark.parametrize("template", NAMES)
def test_permuted_weights_make_the_tags_less_likely(clean, template):
    reading, _ = clean
    table = reading.truth.tables[template]
    swapped = type(table)(table.values, table.weights[:, [0, 3, 4, 1, 2]])  # types swapped
    likely = reading.log_likelihood(reading.truth.tables)
    assert reading.log_likelihood({**reading.truth.tables, template: swapped}) < 1.1 * likely < 0


PAIRS = [
    ("suffix3[0]", "suffix2[0]"),
    ("prefix4[0]", "prefix3[0]"),
    ("suffix3[-1]", "suffix2[-1]"),
    ("pos[-1..0]", "pos[0]"),
    ("pos[-1..0]", "pos[-1]"),
]


@pytest.mark.parametrize(("fine", "coarse"), PAIRS)
def test_a_coarser_template_is_far_less_informative_than_the_planted_one(clean, fine, coarse):
    reading, _ = clean
    kinds = [label[2:] for label in np.array(reading.truth.labels)[reading.tags.numpy()].tolist()]
    rng = np.random.default_rng(0)

    def information(template):
        """Mutual information in nats, less that of shuffled values."""
        values = reading.values(template)
        shuffled = [values[k] for k in rng.permutation(len(values))]
        return mutual_information(values, kinds) - mutual_information(shuffled, kinds)

    assert information(fine) > 10 * max(information(coarse), 1e-4)


def mutual_information(values, kinds):
    pairs = Counter(zip(values, kinds, strict=True))
    of_value, of_kind, total = Counter(values), Counter(kinds), len(values)
    return sum(
        count / total * np.log(count * total / (of_value[value] * of_kind[kind]))
        for (value, kind), count in pairs.items()
    )
