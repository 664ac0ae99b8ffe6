"""Relations of arcs: how they are learnt, how right they are, and what their features and those of trees mean."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from structsparse import load
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column
from structsparse.corpora.known.treebanks import assembled
from structsparse.features.filters import all_of
from structsparse.tasks.parsing.artifact import save
from structsparse.tasks.parsing.data import prepare
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.templates import expand, expand_plain
from structsparse.tasks.parsing.relations import CAP, Relations, averaged, fit_relations
from tests.support.parsers import FEATURES, corpus, made

TEMPLATES = expand_plain(FEATURES["label_templates"])


# --- learning


def by_hand(bags: list[list[int]], gold: list[int], rows: int, relations: int, epochs: int, seed: int) -> np.ndarray:
    """The mean of the weights after every arc, by dictionaries and sums; weights are float32, so that ties are ties."""
    weights, total, steps = Counter(), Counter(), 0
    draw = np.random.default_rng(seed)
    for _ in range(epochs):
        moved = False
        for arc in draw.permutation(len(gold)).tolist():
            scores = [sum(float(weights[row, r]) for row in bags[arc]) for r in range(relations)]
            rival = max((r for r in range(relations) if r != gold[arc]), key=lambda r: (scores[r], -r))
            loss = 1 + scores[rival] - scores[gold[arc]]
            if loss > 0 and bags[arc]:
                moved = True
                step = min(CAP, loss / (2 * len(bags[arc])))
                for row in bags[arc]:
                    weights[row, gold[arc]] = np.float32(float(weights[row, gold[arc]]) + step)
                    weights[row, rival] = np.float32(float(weights[row, rival]) - step)
            total.update({key: float(weight) for key, weight in weights.items()})
            steps += 1
        if not moved:
            break
    return np.array([[total[row, r] / steps for r in range(relations)] for row in range(rows)])


@pytest.mark.parametrize("seed", range(4))
def test_learning_equals_a_plain_loop(seed):
    draw = np.random.default_rng(seed)
    arcs, rows, relations, epochs = 30, 12, 2 + seed, 5
    bags = [sorted(draw.choice(rows, draw.integers(0, 5), replace=False).tolist()) for _ in range(arcs)]
    gold = draw.integers(relations, size=arcs)
    ids = np.array([row for bag in bags for row in bag], np.int32)
    offsets = np.cumsum([0, *map(len, bags)])
    found = averaged(ids, offsets, gold, (rows, relations), seed, epochs)
    np.testing.assert_allclose(found, by_hand(bags, gold.tolist(), rows, relations, epochs, seed), atol=2e-5)


def test_one_relation_needs_no_weights():
    ids, offsets = np.zeros(3, np.int32), np.arange(4)
    assert not averaged(ids, offsets, np.zeros(3, np.int64), (1, 1)).any()


def test_relations_that_follow_from_their_features_are_found():
    """The planted ones follow from both parts of speech and the direction; test is another text."""
    found = corpus(sentences=300)
    model, _ = fit_relations(found.train, TEMPLATES)
    predicted = model.predict(found.test, found.test.heads).strings()
    gold = found.test.columns["deprel"].strings()
    right = np.mean([a == b for a, b in zip(predicted, gold, strict=True)])
    assert right > 0.95 > 2 * Counter(gold).most_common(1)[0][1] / len(gold)


def test_the_scores_are_sums_of_the_weights_of_features():
    found = corpus()
    model, features = fit_relations(found.train, TEMPLATES)
    assert 0 < len(model.index) <= features
    heads = np.where(np.arange(found.dev.tokens) % 2 == 0, found.dev.heads, 0)  # any heads will do
    bags, table = model.index.bags_chosen(found.dev, heads.astype(np.int64)), model.weights.toarray()
    expected = [table[bags.ids[a:b]].sum(axis=0) for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]
    np.testing.assert_allclose(model.scores(found.dev, heads), np.array(expected), atol=1e-5)
    assert (table != 0).any(axis=1).all()


def test_las_is_that_of_right_arcs_alone():
    found = made()
    result = found.module.evaluate(found.data.batches("dev", 3)).result()
    dev, heads = found.data.splits.dev, found.heads("dev")
    relations = found.module.labelling.model.predict(dev, heads).strings()
    triples = zip(heads, dev.heads, relations, dev.columns["deprel"].strings(), strict=True)
    assert result["las"] == np.mean([a == b and c == d for a, b, c, d in triples])
    assert 0 < result["las"] <= result["uas"]
    assert "las" not in made(labels=False).module.evaluate(found.data.batches("dev", 3)).result()


def without_relations(treebanks):
    parts = {}
    for part, treebank in treebanks.parts.items():
        same = Column(["_"], np.zeros(treebank.tokens, np.int32))
        parts[part] = treebank.with_column("deprel", same)
    return assembled("heads alone", parts, "upos")


def test_a_treebank_without_relations_has_none_to_learn():
    options = {"projective": False, "single_root": False, "labels": True}
    data = prepare(without_relations(corpus()), FEATURES, all_of, 0, **options)
    assert data.label_templates == ()
    assert "train has one relation only: relations are not learnt" in data.describe()


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({"label_templates": ["m.deprel"]}, "'m.deprel' looks at deprel, which a parser predicts"),
        ({"templates": ["h.deprel & m.upos"]}, "looks at deprel, which a parser predicts"),
        ({"templates": ["h.misc"]}, "a word has no misc, it has word, lemma, upos, xpos, feats, feats.case, lower"),
        ({"label_templates": []}, "task.labels=true needs features.label_templates"),
        ({"label_templates": ["h.word", "h.{word,upos}"]}, "'h.word' is given twice"),
    ],
)
def test_templates_that_cannot_be_are_refused(features, reason):
    options = {"projective": False, "single_root": False, "labels": True}
    with pytest.raises(UserError, match=reason):
        prepare(corpus(), FEATURES | features, all_of, 0, **options)


# --- features in words


def naive(treebank, template: str) -> dict[tuple[int, int, int], str]:
    """What a template says of each arc (sentence, head, modifier), by its name and plain lists."""
    found = {}
    for s in range(len(treebank)):
        begin, end = treebank.offsets[s : s + 2].tolist()
        columns = {name: column.strings(begin, end) for name, column in treebank.columns.items()}
        columns["suffix2"] = [word[-2:] if len(word) >= 2 else "=" + word for word in columns["word"]]
        columns["suffix3"] = [word[-3:] if len(word) >= 3 else "=" + word for word in columns["word"]]
        for modifier in range(1, end - begin + 1):
            for head in range(end - begin + 1):
                if head != modifier:
                    parts = [said(part, columns, head, modifier) for part in template.split(" & ")]
                    found[s, head, modifier] = " & ".join(parts)
    return found


def said(part: str, columns: dict[str, list[str]], head: int, modifier: int) -> str:
    low, high = sorted((head, modifier))
    tags = columns["upos"][low : high - 1]
    many = {sort: ("none", "one", "more")[min(2, sum(tag in sort for tag in tags))] for sort in ("VERB AUX", "PUNCT")}
    verbs, marks = many["VERB AUX"], many["PUNCT"]
    far = high - low if high - low <= 5 else "6-10" if high - low <= 10 else "11+"
    side = "left" if head < modifier else "right"
    fixed = {
        "bias": "bias",
        "direction": f"direction={side}",
        "distance": f"distance={side} {far}",
        "length": f"length={far}",
        "between.upos": f"between.upos={','.join(sorted(set(tags))) or 'nothing'}",
        "between.verbs": f"between.verbs={verbs}",
        "between.punctuation": f"between.punctuation={marks}",
        "between.verbs_punctuation": f"between.verbs_punctuation={verbs},{marks}",
        "between.conjunctions": f"between.conjunctions={'some' if {'CCONJ', 'CONJ'} & set(tags) else 'none'}",
    }
    if part in fixed:
        return fixed[part]
    end, name = part.split(".")
    place = (head if end[0] == "h" else modifier) + int(end[1:] or 0)
    values = ["<root>", *columns[name]]
    return f"{part}={'<before>' if place < 0 else '<after>' if place >= len(values) else values[place]}"


@pytest.fixture(scope="module")
def treebank():
    return corpus(seed=3, sentences=6).train


LINES = [*FEATURES["templates"], "h-2.xpos & m+2.word", "{direction,distance,length}"]
EVERY = expand(LINES[:-1], ["plain", "direction", "distance"]) + expand(LINES[-1:])


@pytest.mark.parametrize("template", EVERY, ids=str)
def test_features_in_words_are_what_the_treebank_says(template, treebank):
    """Of every arc, not only the one that a feature is rebuilt from, and no two features say the same."""
    index = ArcIndex.fit(treebank, [template])
    bags, expected = index.bags(treebank), naive(treebank, template.name)
    names = index.describe(np.arange(len(index)), treebank, bags)
    assert len({*names}) == len(names)
    of_arc = iter(bags.ids.tolist())
    for s in range(len(treebank)):
        size = int(treebank.lengths[s])
        for modifier in range(1, size + 1):
            for head in (h for h in range(size + 1) if h != modifier):
                assert names[next(of_arc)] == expected[s, head, modifier]


def test_features_of_chosen_arcs_are_those_of_all_arcs(treebank):
    heads = treebank.heads.astype(np.int64)
    index = ArcIndex.fit_chosen(treebank, heads, TEMPLATES, 2)
    bags = index.bags_chosen(treebank, heads)
    names = index.describe(np.arange(len(index)), treebank, bags, heads)
    place = np.arange(treebank.tokens) - np.repeat(treebank.offsets[:-1], treebank.lengths) + 1
    sentence = np.repeat(np.arange(len(treebank)), treebank.lengths)
    arcs = list(zip(sentence.tolist(), heads.tolist(), place.tolist(), strict=True))
    every = [naive(treebank, template.name) for template in TEMPLATES]
    counts = Counter(says[arc] for arc in arcs for says in every)
    assert {*names} == {name for name, count in counts.items() if count >= 2}
    for token, arc in enumerate(arcs):
        own = [names[row] for row in bags.ids[bags.offsets[token] : bags.offsets[token + 1]]]
        assert own == [says[arc] for says in every if counts[says[arc]] >= 2]


def test_rows_can_be_described_in_any_order(treebank):
    index = ArcIndex.fit(treebank, EVERY[:9])
    bags, rows = index.bags(treebank), np.random.default_rng(0).permutation(len(index))
    names = index.describe(np.arange(len(index)), treebank, bags)
    assert index.describe(rows[:50], treebank, bags) == [names[row] for row in rows[:50]]
    assert index.describe(rows[:50], treebank) == [names[row] for row in rows[:50]]
    alive = np.zeros(len(index), bool)
    alive[rows[:20]] = True
    living, new_row = index.keep(alive)
    assert living.describe(new_row[rows[:20]], treebank) == [names[row] for row in rows[:20]]
    assert index.describe(rows[:0], treebank, bags) == []


def test_relations_without_weights_are_written_and_read(tmp_path):
    """Nothing tells them apart: all arcs get the first."""
    model = made().model
    nothing, _ = model.relations.index.keep(np.zeros(len(model.relations.index), bool))
    empty = Relations(model.relations.names, nothing, csr_array((0, len(model.relations.names)), dtype=np.float32))
    save(tmp_path / "model", replace(model, relations=empty))
    again = load(tmp_path / "model")
    assert {*again.parse(corpus().test).relations.strings()} == {model.relations.names[0]}
