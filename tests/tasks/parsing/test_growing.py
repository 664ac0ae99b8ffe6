"""Parsers whose features come into being as they are moved: against a table of all of them, and against dictionaries
of strings."""

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import planted
from structsparse.features.filters import all_of
from structsparse.features.layout import by_feature, by_template
from structsparse.kernels.solvers import online_trees_by_keys as key_walk
from structsparse.kernels.weights import key_table
from structsparse.losses.structured import Hinge, Perceptron
from structsparse.penalties import GroupLasso
from structsparse.solvers.online import OnlineMIRA, OnlinePerceptron
from structsparse.tasks.parsing import data as parsing
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.growing import GrowingArcScorer
from structsparse.tasks.parsing.model import ArcScorer, Parser

LINES = ["{h,m}.{word,upos}", "h.upos & m.upos", "h.lemma & m.upos & m-1.upos", "bias", "between.verbs & h.upos"]
FEATURES = {"templates": LINES, "variants": ["plain", "direction", "distance"], "min_count": 1}
BLOCK = 25
RULES = {
    "perceptron": (Perceptron, lambda p, **options: OnlinePerceptron(p, decay=0.0, **options)),
    "mira": (Hinge, lambda p, **options: OnlineMIRA(p, **{"average": False, **options})),
}


@pytest.fixture(scope="module")
def splits():
    return planted(seed=0, train=60, dev=10, test=10, nonprojective=0.1)


@pytest.fixture(scope="module")
def data(splits):
    return parsing.prepare(splits, FEATURES, all_of, 0, projective=False, single_root=False)


def interned(data):
    return Parser(ArcScorer(data.sizes))


def growing(data):
    return Parser(GrowingArcScorer())


def passages(data, epochs=2):
    loader = data.passages("train", BLOCK, seed=0)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        yield from loader


def weights(parser, data):
    """All weights, in the order of the index."""
    scorer = parser.scorer
    if isinstance(scorer, ArcScorer):
        return scorer.table.detach().view(-1).clone()
    index = data.index
    place = {(k, key): row for k in range(len(index.templates)) for key, row in block(index, k)}
    found = torch.zeros(len(index))
    for weight, key, template in zip(
        scorer.table.detach().view(-1), unsigned(scorer.keys), scorer.templates.tolist(), strict=True
    ):
        found[place[template, key]] = weight
    return found


def block(index, k):
    own = slice(index.offsets[k], index.offsets[k + 1])
    return zip(index.keys[own].tolist(), index.rows[own].tolist(), strict=True)


def unsigned(keys):
    return keys.numpy().view(np.uint64).tolist()


def by_strings(data, splits, passive, mean=False):
    """The scalar way: dictionaries from strings to weights, best trees by trying the structure on a matrix."""
    table, past, clock, losses = {}, {}, 0, []
    structure, cost = Parser(GrowingArcScorer()).structure, float(passive)
    names = features_of(splits.train, data.templates)
    for passage in passages(data):
        for s in passage.sentences.tolist():
            gold = splits.train.heads[splits.train.offsets[s] : splits.train.offsets[s + 1]].tolist()
            n = len(gold)
            scores = torch.zeros(1, n + 1, n + 1, dtype=torch.float64)
            for m in range(1, n + 1):
                for h in range(n + 1):
                    own = sum(table.get(f, 0.0) for f in names(s, h, m)) if h != m else 0.0
                    scores[0, m, h] = own + cost * (h != gold[m - 1])
            rival = structure.best(scores, torch.tensor([n]))[0].tolist()
            moves, loss = {}, 0.0
            for m in range(1, n + 1):
                loss += float(scores[0, m, rival[m - 1]] - scores[0, m, gold[m - 1]])
                for head, sign in ((gold[m - 1], 1), (rival[m - 1], -1)):
                    for feature in names(s, head, m):
                        moves[feature] = moves.get(feature, 0) + sign
            moves = {feature: count for feature, count in moves.items() if count}
            length = sum(count**2 for count in moves.values())
            step = (min(1.0, loss / length) if passive else 1.0) if moves else 0.0
            for feature, count in moves.items():
                table[feature] = table.get(feature, 0.0) + step * count
                past[feature] = past.get(feature, 0.0) + step * count * clock
            losses.append(loss)
            clock += 1
    return {f: w - past[f] / clock for f, w in table.items()} if mean else table


def features_of(treebank, templates):
    """What templates say of an arc, as strings."""

    def value(s, place, name):
        first, last = treebank.offsets[s], treebank.offsets[s + 1]
        if place == 0:
            return "<root>"
        if place < 0 or place > last - first:
            return "<before>" if place < 0 else "<after>"
        column = treebank.columns[name]
        return column.values[column.codes[first + place - 1]]

    def names(s, h, m):
        apart, side = abs(h - m), h > m
        bin = apart if apart <= 5 else 6 + (apart > 10)
        inside = min(2, sum(value(s, p, "upos") in ("VERB", "AUX") for p in range(min(h, m) + 1, max(h, m))))
        told = {None: "", "direction": f"{side}", "distance": f"{side} {bin}", "length": f"{bin}"}
        return [
            f"{t.name}: {[value(s, (h if end == 'h' else m) + shift, name) for end, shift, name in t.tokens]} "
            f"{inside if t.between else ''} {told[t.place]}"
            for t in templates
        ]

    return names


# --- the same weights


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_a_growing_table_has_the_weights_of_a_table_of_all_features(data, rule, average):
    kind, solver = RULES[rule]
    found, losses = [], []
    for make in (interned, growing):
        parser = make(data)
        optimizer = solver(parser.parameters(), average=average)
        losses.append([float(optimizer.sweep(parser, kind(parser.structure), p)) for p in passages(data)])
        living = optimizer.living
        assert living == int((parser.scorer.table != 0).sum())
        optimizer.take_mean()
        found.append(weights(parser, data))
    assert losses[0] == losses[1]
    assert torch.equal(*found)
    assert found[0].any()


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_it_is_what_dictionaries_of_strings_come_to(data, splits, rule, average):
    kind, solver = RULES[rule]
    parser = growing(data)
    optimizer = solver(parser.parameters(), average=average)
    for passage in passages(data):
        optimizer.sweep(parser, kind(parser.structure), passage)
    optimizer.take_mean()
    expected = sorted(by_strings(data, splits, rule == "mira", average).values())
    found = parser.scorer.table.detach().view(-1).tolist()
    found = sorted(found + [0.0] * (len(expected) - len(found)))  # rows of zeros are given up
    assert len(expected) > 100
    assert found == pytest.approx(expected, abs=1e-4)


def test_keys_are_those_of_the_index(data, splits):
    looks = ArcKeys(splits.train, data.templates)
    says, sentence = looks.template_atoms, 7
    tokens = int(says.starts[sentence + 1] - says.starts[sentence])
    sums, keys = key_walk.partial_keys_for(says, tokens - 1), np.empty(len(data.templates), np.uint64)
    key_walk.sum_atoms(says, sentence, sums)
    arc = int(looks.first_arcs[sentence])
    of_template = np.stack([looks.keys(k) for k in range(len(data.templates))])
    for m in range(1, tokens):
        for h in range(tokens):
            if h != m:
                key_walk._keys_of(says, sums, h, m, tokens, keys)
                assert np.array_equal(keys, of_template[:, arc])
                arc += 1
    assert looks.distinct_counts().tolist() == [len({*own}) for own in of_template.tolist()]
    assert looks.distinct_counts().tolist() == np.diff(data.index.offsets).tolist()


def test_scores_of_new_sentences_are_those_of_the_index(data):
    parser, twin = growing(data), interned(data)
    optimizer = OnlineMIRA(parser.parameters())
    batch = next(iter(data.batches("dev", 10)))
    assert not parser(batch).any()
    for passage in passages(data):
        optimizer.sweep(parser, Hinge(parser.structure), passage)
    for change in (lambda: None, optimizer.take_mean, optimizer.resume):
        change()
        twin.scorer.table.data = weights(parser, data)[:, None]
        torch.testing.assert_close(parser(batch), twin(batch), rtol=1e-5, atol=1e-5)
    copy = growing(data)
    copy.load_state_dict(parser.state_dict())
    assert torch.equal(copy(batch), parser(batch))


# --- proxes, and what becomes of the dead


def penalty_of(parser, data):
    if isinstance(parser.scorer, GrowingArcScorer):
        groups = parser.scorer.groups_of(by_template, data.counted_layout, "table")
    else:
        groups = by_template((len(data.index), 1), data.layout)
    return GroupLasso(groups, 0.02)


def test_proxes_by_template_leave_the_same_weights(data):
    found, rows = [], []
    for make in (interned, growing):
        parser = make(data)
        penalty, table = penalty_of(parser, data), parser.scorer.table
        optimizer = OnlinePerceptron(parser.parameters())
        living = 0
        for passage in passages(data, epochs=3):
            optimizer.sweep(parser, Perceptron(parser.structure), passage)
            if make is growing:
                rows.append(optimizer.rows)
                assert living <= optimizer.rows  # what has lived, and what has been moved since
            optimizer.place_(optimizer.param_groups[0], table)
            penalty.prox_(table.detach(), optimizer.rate(optimizer.param_groups[0]))
            living = int((table != 0).sum())
        found.append(
            (weights(parser, data), float(penalty.value(table.detach())), penalty.groups.alive(table.detach()))
        )
    (dense, value, alive), (grown, same, lives) = found
    assert torch.equal(penalty.groups.size, torch.from_numpy(np.diff(data.index.offsets)))
    torch.testing.assert_close(grown, dense, rtol=1e-4, atol=1e-5)
    assert same == pytest.approx(value, rel=1e-4)
    assert torch.equal(alive, lives)
    assert 0 < int(alive.sum()) < len(alive)
    assert any(later < before for before, later in zip(rows, rows[1:], strict=False))


def test_rows_are_those_that_live_and_those_moved_since(data):
    """After a prox and before the next sweep: exactly the living, once it begins; a second sweep adds what it moves."""
    parser = growing(data)
    optimizer, scorer = OnlinePerceptron(parser.parameters(), decay=0.0), parser.scorer
    first, second, *_ = passages(data)
    optimizer.sweep(parser, Perceptron(parser.structure), first)
    optimizer.place_(optimizer.param_groups[0], scorer.table)
    scorer.table.data[::2] = 0.0
    before = {*unsigned(scorer.keys[scorer.table.view(-1) != 0])}
    weights_before = dict(zip(unsigned(scorer.keys), scorer.table.view(-1).tolist(), strict=True))
    scorer.release()
    assert {*unsigned(scorer.keys)} == before
    assert dict(zip(unsigned(scorer.keys), scorer.table.view(-1).tolist(), strict=True)) == {
        key: weights_before[key] for key in before
    }
    optimizer.sweep(parser, Perceptron(parser.structure), second)
    now = dict(zip(unsigned(scorer.keys), scorer.table.view(-1).tolist(), strict=True))
    moved = {key for key, weight in now.items() if weight != weights_before.get(key, 0.0) * (key in before)}
    zero = {key for key, weight in now.items() if weight == 0 and key not in before}  # moved there and back
    assert {*now} == before | moved | zero
    assert len(now) == scorer.held == optimizer.rows


def test_a_table_that_rests_is_as_large_as_what_it_holds_and_goes_on_as_it_was(data):
    found = []
    for rests in (False, True):
        parser = growing(data)
        optimizer, scorer = OnlineMIRA(parser.parameters(), average=False), parser.scorer
        first, second, *_ = passages(data)
        optimizer.sweep(parser, Hinge(parser.structure), first)
        if rests:
            held = scorer.held
            scorer.compact()
            own = (scorer.table, scorer.keys, scorer.templates)
            assert [len(tensor) for tensor in own] == [held] * 3
            assert [t.untyped_storage().nbytes() // t.element_size() for t in own] == [held] * 3
        optimizer.sweep(parser, Hinge(parser.structure), second)
        found.append(weights(parser, data))
    assert torch.equal(*found)


def test_a_frozen_table_takes_no_new_features(data):
    """Only features of an index: as a table of these does."""
    chosen, _ = data.index.keep(np.arange(len(data.index)) % 3 > 0)
    small = data.with_features(chosen)
    twin, parser = interned(small), Parser(GrowingArcScorer())
    owners = np.repeat(np.arange(len(chosen.templates)), np.diff(chosen.offsets))
    keys = torch.from_numpy(chosen.keys.view(np.int64).copy())
    parser.scorer.set_rows(torch.zeros(len(chosen), 1), keys, torch.from_numpy(owners))
    parser.scorer.open = False
    for each in (twin, parser):
        optimizer = OnlineMIRA(each.parameters())
        for passage in passages(small):
            optimizer.sweep(each, Hinge(each.structure), passage)
    assert parser.scorer.held == len(chosen)
    assert torch.equal(weights(parser, small), weights(twin, small))


# --- the table that is searched


def test_slots_are_found_however_keys_crowd():
    draw = np.random.default_rng(0)
    crowded = np.arange(1, 400, dtype=np.uint64) << np.uint64(12)  # all begin at the first slot
    last = np.uint64(2**64 - 1) - np.arange(300, dtype=np.uint64) * np.uint64(2**20)  # at the last one, and go round
    same_tag = (np.arange(1, 300, dtype=np.uint64) << np.uint64(55)) | np.uint64(77)
    no_tag = draw.integers(1, 2**32, 300, dtype=np.uint64) << np.uint64(32)
    keys = np.unique(np.concatenate([crowded, last, same_tag, no_tag, draw.integers(0, 2**63, 500).astype(np.uint64)]))
    table = draw.random(len(keys)).astype(np.float32) + 1
    slots = key_table.slots_for(len(keys))
    assert len(keys) <= key_table.room(slots)
    key_table.fill(slots, keys, table)
    for row, key in enumerate(keys):
        slot, there = key_table.find(slots, keys, key)
        assert there
        assert slots.rows[slot] == row
        other = np.uint64(int(key) ^ 1 << 40)
        assert key_table.find(slots, keys, other)[1] == (other in keys)
    back = np.zeros_like(table)
    key_table.collect(slots, back)
    assert np.array_equal(back, table)
    key_table.pour(slots, 2 * table)
    key_table.collect(slots, back)
    assert np.array_equal(back, 2 * table)
    found = np.empty(len(keys), np.float32)
    key_table.look_up(slots, keys, found)
    alone = ~np.isin(keys, same_tag) & ~np.isin(keys, no_tag)  # of equal tags in one neighbourhood the first is found
    assert np.array_equal(found[alone], back[alone])


def test_it_grows_as_it_is_filled_and_never_beyond_its_load(data):
    parser = growing(data)
    optimizer, scorer, sizes = OnlinePerceptron(parser.parameters()), parser.scorer, []
    for passage in passages(data, epochs=1):
        optimizer.sweep(parser, Perceptron(parser.structure), passage)
        sizes.append(len(scorer._slots.rows))
        assert scorer.held <= key_table.room(scorer._slots)
        assert len({*unsigned(scorer.keys)}) == scorer.held
        assert int((scorer._slots.tags[::2] != 0).sum()) == scorer.held
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


# --- what is refused


def test_what_it_does_not_know_is_refused(data):
    parser = growing(data)
    with pytest.raises(UserError, match="groups=template only"):
        parser.scorer.groups_of(by_feature, data.layout, "table")
    optimizer = OnlineMIRA(parser.double().parameters())
    with pytest.raises(UserError, match="float32"):
        optimizer.sweep(parser, Hinge(parser.structure), next(passages(data)))
