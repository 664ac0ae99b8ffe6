"""Explanations of classifiers: words, groups, sentences and phrases, as a page and as text."""

import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Constituents, DocumentSplits, tokenize
from structsparse.features import word_groups
from structsparse.features.words import bag
from structsparse.groups import cover_rows
from structsparse.tasks.textcat.explain import explain
from structsparse.tasks.textcat.explain import page as explain_page
from structsparse.tasks.textcat.explain import text as explain_text
from structsparse.tasks.textcat.explain.phrases import phrases_of
from structsparse.tasks.textcat.explain.style import STYLE, shade

TEXTS = [
    "The moon is bright. Doctors agree (they say).  \"Bright moon!\" he said.",
    "A doctor came & went. The <b>rocket</b> failed. Nothing else happened.",
    "Rockets fly. The doctor sleeps. So what?",
    "Moon and rocket. A long night passed.",
]  # fmt: skip
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def split(documents):
    """Documents with sentences that end at . ! ? before a space."""
    first = []
    for low, high, text in zip(documents.offsets[:-1], documents.offsets[1:], documents.texts, strict=True):
        after = [0, *(match.end() for match in re.finditer(r"[.!?][)\"]*\s+", text))]
        first += [low + np.searchsorted(documents.begins[low:high], place) for place in after]
    return replace(documents, sentence_offsets=np.unique([*first, len(documents.tokens)]))


def corpus(labels=(1, 0, 0, 1), classes=("med", "space"), texts=TEXTS) -> DocumentSplits:
    labels = np.array(labels, np.int64 if classes else np.float64)
    names = [f"post/{k}" for k in range(len(texts))]
    documents = split(tokenize(names, texts, labels, classes))
    return DocumentSplits("posts", documents.select([0, 1, 2]), documents.select([2]), documents.select([3, 1]))


def explained(data: DocumentSplits, weights: dict, bias=0.0, cover=None, shown=None, weighting="counts", **options):
    """The explanation of a model with these weights of words, and the bag, table and bias of the model."""
    words = bag(data, weighting)
    width = len(next(iter(weights.values()))) if isinstance(next(iter(weights.values())), tuple) else None
    table = np.zeros(len(words.layout) if width is None else (len(words.layout), width))
    for word, weight in weights.items():
        table[words.layout.words.index(word)] = weight
    cover = None if cover is None else cover((table.shape), words.layout)
    every = [(part, k) for part in ("train", "test") for k in range(len(data.parts[part]))]
    bias = np.full(width or 1, bias)
    return (
        explain.explain(data, words, table, bias, cover, every if shown is None else shown, **options),
        words,
        table,
        bias,
    )


# --- what a document loses without a sentence


@pytest.mark.parametrize("weighting", ["counts", "binary", "log", "tfidf", "sublinear"])
@pytest.mark.parametrize(
    ("loss", "classes"),
    [
        ("logistic", ("med", "space")), ("logistic", ("med", "space", "other")), ("squared_hinge", ("med", "space")),
        ("squared_hinge", ("med", "space", "other")), ("squared", None), ("squared", ("med", "space")),
    ],
)  # fmt: skip
def test_a_change_is_that_of_a_document_written_without_the_sentence(weighting, loss, classes):
    """The document is written again without the sentence and scored by separate formulas."""
    data = corpus(classes=classes)
    rng = np.random.default_rng(3)
    names = ["moon", "rocket", "doctor", "bright", "the", "a"]
    many = classes is not None and len(classes) > 2
    weights = {name: tuple(rng.normal(size=3)) if many else float(rng.normal()) for name in names}
    result, words, table, bias = explained(data, weights, 0.3, weighting=weighting, loss=loss)
    checked = 0
    for document, (part, number) in zip(
        result.documents, [*(("train", k) for k in range(3)), ("test", 0), ("test", 1)], strict=True
    ):
        label = data.parts[part].labels[number]
        for left in range(len(document.sentences)):
            texts = ["".join(s.text for k, s in enumerate(document.sentences) if k != gone) for gone in (None, left)]
            matrix = words.matrix(tokenize(["a", "b"], texts, np.zeros(2), None))
            values = [value(row, label, loss, classes) for row in np.asarray(matrix @ table + bias)]
            assert document.sentences[left].change == pytest.approx(values[0] - values[1], abs=1e-12)
            checked += abs(values[0] - values[1]) > 1e-6
    assert checked > 6
    assert result.measure == ("number" if classes is None else "log-probability" if loss == "logistic" else "score")


def value(scores, label, loss: str, classes) -> float:
    """The log-probability of a label, or its score, or the predicted number."""
    if classes is None:
        return float(scores)
    if len(classes) == 2:
        margin = scores if label == 1 else -scores
        return float(np.log(1 / (1 + np.exp(-margin)))) if loss == "logistic" else float(margin)
    chosen = float(scores[int(label)])
    return float(np.log(np.exp(chosen) / np.exp(scores).sum())) if loss == "logistic" else chosen


def test_a_document_of_one_sentence_is_left_with_the_bias():
    result, *_ = explained(corpus(texts=["moon rocket", *TEXTS[1:]]), {"moon": 1.0}, -0.2, shown=[("train", 0)])
    (sentence,) = result.documents[0].sentences
    assert sentence.change == pytest.approx(-np.log1p(np.exp(-0.8)) + np.log1p(np.exp(0.2)))


def test_probability_and_prediction_are_those_of_the_model():
    result, *_ = explained(corpus(), {"moon": 1.0, "doctor": -2.0}, 0.5)
    first, second = result.documents[:2]
    assert (first.predicted, first.right) == ("space", True)
    assert first.probability == pytest.approx(1 / (1 + np.exp(-2.5)))
    assert (second.predicted, second.right) == ("med", True)
    hinge, *_ = explained(corpus(), {"moon": 1.0}, loss="squared_hinge")
    assert hinge.documents[0].probability is None
    assert not hinge.documents[1].right or hinge.documents[1].predicted == "med"


# --- which sentences and phrases live


def test_training_sentences_are_selected_by_their_groups():
    data = corpus()
    result, *_ = explained(data, {"moon": 1.0, "doctor": -1.0}, cover=word_groups.sentences)
    lives = [[sentence.lives for sentence in document.sentences] for document in result.documents]
    assert lives == [
        [True, False, True, False],
        [True, False, False],
        [False, True, False],
        [True, False],
        [True, False, False],
    ]
    (kind,) = result.kinds
    cover = word_groups.sentences((len(bag(data).layout),), bag(data).layout)
    alive = np.zeros(len(cover), bool)  # as a solver says
    alive[1] = True
    result, *_ = explained(data, {"moon": 1.0, "doctor": -1.0}, cover=word_groups.sentences, alive=alive)
    names = {cover.names[1]}
    selected = [
        f"sentence {k + 1} of {document.name}"
        for document in result.documents
        for k, sentence in enumerate(document.sentences)
        if sentence.lives and document.part == "train"
    ]
    assert set(selected) == names
    in_test = [sentence.lives for sentence in result.documents[-1].sentences]
    assert in_test == [True, False, False]  # the same text in test has no group
    assert (kind.living, kind.dead) == (4, len(cover) - 4)


def test_an_opening_quote_belongs_to_the_next_sentence():
    result, *_ = explained(corpus(), {"moon": 1.0}, shown=[("train", 0)])
    assert [sentence.text for sentence in result.documents[0].sentences] == [
        "The moon is bright. ", "Doctors agree (they say).  ", '"Bright moon!" ', "he said.",
    ]  # fmt: skip


def test_without_groups_a_sentence_is_selected_by_its_words():
    bare, *_ = explained(corpus(), {"rocket": 1.0})
    assert [s.lives for s in bare.documents[1].sentences] == [False, True, False]
    assert bare.kinds == ()
    others, *_ = explained(corpus(), {"rocket": 1.0}, cover=lambda shape, layout: cover_rows(shape, [[0, 1], [2, 3]]))
    assert [s.lives for s in others.documents[1].sentences] == [False, True, False]


@given(st.lists(st.text(alphabet=" \n.!?()\"'<>ab\tÄ\u200f", min_size=0, max_size=30), min_size=1, max_size=4))
def test_sentences_joined_are_the_text(texts):
    texts = ["a.", *texts]
    labels = np.zeros(len(texts), np.int64)
    documents = split(tokenize([f"{k}" for k in range(len(texts))], texts, labels, ("x", "y")))
    data = DocumentSplits("corpus", documents, documents, documents)
    result, *_ = explained(data, {"a": 1.0}, shown=[("train", k) for k in range(len(texts))])
    for document, text, length in zip(result.documents, texts, documents.lengths, strict=True):
        assert "".join(sentence.text for sentence in document.sentences) == (text if length else "")
        weighted = [piece for sentence in document.sentences for piece, weight in sentence.pieces if weight]
        assert len(weighted) == sum(word.lower() == "a" for word in re.findall(r"\w+", text))
    assert explain_page.page(result)
    assert explain_text.text(result)


def tree(text: str, spans: dict, weights: dict):
    """The parse trees of a text with sentiments of spans and weights of words."""
    documents = tokenize(["x"], [text], np.zeros(1, np.int64), ("a", "b"))
    begin, end = np.array([*spans], np.int32).T
    values = np.array([*spans.values()], np.int16)
    constituents = Constituents(np.zeros(len(spans), np.int32), begin, end, values)
    documents = replace(documents, constituents=constituents)
    tokens = np.array([weights.get(documents.words[code], 0.0) for code in documents.tokens])
    return phrases_of(documents, 0, tokens, lambda a, b: bool(tokens[a:b].any()))


def test_dead_phrases_are_cut_from_the_tree():
    spans = {(0, 6): 4, (0, 2): 2, (2, 6): 3, (2, 3): 2, (3, 6): 1, (4, 6): 2, (0, 1): 2, (1, 2): 2}
    (root,) = tree("the actors are not so fantastic", spans, {"are": 1.0, "not": -1.0})
    assert explain_text.bracketed(root) == "([the actors] (are (not [so fantastic])))"
    assert [child.label for child in root.children] == ["", "+"]
    assert root.label == "++"
    words = root.children[1].children
    assert [(word.words, word.lives, word.weight) for word in words[:1]] == [(("are",), True, 1.0)]
    svg = explain_page.drawing(root, 1.0)
    assert Counter(re.findall(r'<circle class="(\w+)"', svg)) == {"lives": 3, "dead": 2}
    assert Counter(re.findall(r'<path class="(\w+)"', svg)) == {"lives": 4, "dead": 6}
    assert 'aria-label="Parse tree' in svg


def test_several_trees_and_words_that_are_not_constituents():
    one, other = tree("a b c d e", {(0, 3): -1, (3, 5): -1, (1, 3): -1}, {"c": 1.0})
    assert (explain_text.bracketed(one), explain_text.bracketed(other)) == ("([a] ([b] c))", "[d e]")
    assert all(label == "" for label in (one.label, other.label))
    crossing = tree("a b c d", {(0, 3): -1, (1, 4): -1}, {"b": 1.0})  # not a tree
    assert [word for root in crossing for word in root.words][:3] == ["a", "b", "c"]


def test_constituents_are_labelled_by_their_kinds():
    documents = tokenize(["x"], ["a b"], np.zeros(1, np.int64), ("a", "b"))
    kinds = {"kind": np.array([1], np.int16), "kinds": ("VP", "NP")}
    constituents = Constituents(np.zeros(1, np.int32), np.array([0]), np.array([2]), np.array([-1], np.int16), **kinds)
    (root,) = phrases_of(replace(documents, constituents=constituents), 0, np.ones(2), lambda a, b: True)
    assert root.label == "NP"
    assert ">NP<" in explain_page.drawing(root, 1.0)


# --- groups and words


def test_groups_are_living_first_by_norm_then_dead_by_size():
    def cover(shape, layout):
        rows = [[layout.words.index(word) for word in words] for words in (
            ("moon", "night"), ("rocket", "moon", "so"), ("what", "so"), ("what", "so", "sleeps", "nothing"),
        )]  # fmt: skip
        names = [f"topic {k}: words" for k in range(len(rows))]
        return cover_rows(shape, rows, names=names, weights="one")

    data = corpus()
    data = replace(data, train=data.parts["train"].select([0, 1, 2]), test=data.test)
    every = split(tokenize([*"abcd"], TEXTS, np.array([1, 0, 0, 1]), ("med", "space")))
    data = DocumentSplits("posts", every, every, every)
    result, *_ = explained(data, {"moon": 3.0, "rocket": -4.0}, cover=cover)
    (kind,) = result.kinds
    assert (kind.name, kind.living, kind.dead) == ("topics", 2, 2)
    assert [(group.name, group.lives) for group in kind.shown] == [
        ("topic 1: words", True), ("topic 0: words", True), ("topic 3: words", False), ("topic 2: words", False),
    ]  # fmt: skip
    assert kind.shown[0].norm == pytest.approx(5.0)
    assert [(m.word, m.weight) for m in kind.shown[0].words] == [("rocket", -4.0), ("moon", 3.0), ("so", 0.0)]
    assert dict(result.top_words) == {"med": (("rocket", 4.0),), "space": (("moon", 3.0),)}
    both, *_ = explained(
        data, {"moon": 1.0}, cover=lambda *a: word_groups.combined(*a, parts={"sentences": 1, "documents": 1})
    )
    assert [kind.name for kind in both.kinds] == ["sentences", "documents"]
    assert sum(kind.living + kind.dead for kind in both.kinds[1:]) == 4


def test_few_of_many_groups_and_words_are_shown():
    rng = np.random.default_rng(0)
    words = [f"w{k}" for k in range(300)]
    data = DocumentSplits("many", *[tokenize(["x", "y"], [" ".join(words), "w1"], np.array([0, 1]), ("a", "b"))] * 3)

    def cover(shape, layout):
        return cover_rows(shape, [rng.choice(300, 20, replace=False).tolist() for _ in range(500)], weights="one")

    result, *_ = explained(data, {f"w{k}": float(k) for k in range(1, 40)}, cover=cover, shown=[])
    (kind,) = result.kinds
    assert kind.living + kind.dead == 500
    assert len(kind.shown) <= 2 * explain.GROUPS
    assert all(len(group.words) == explain.GROUP_WORDS and group.size == 20 for group in kind.shown)
    norms = [group.norm for group in kind.shown if group.lives]
    assert norms == sorted(norms, reverse=True)
    assert f"{kind.living:,} living" in explain_page.page(result)


def test_paths_are_cut_to_folder_and_file_and_long_names_are_cut():
    assert explain.short("sentence 3 of /a/b/c/file.txt:9") == "sentence 3 of c/file.txt:9"
    assert explain.short("and/or") == "and/or"
    assert len(explain.short("x" * 500)) == explain.LONGEST + 1


def test_with_several_classes_words_are_coloured_for_the_class_of_the_document():
    data = corpus((2, 0, 1, 0), ("a", "b", "c"))
    result, *_ = explained(data, {"moon": (0.0, 0.0, 3.0), "doctor": (1.0, 0.0, -1.0)})
    weights = {piece: weight for s in result.documents[0].sentences for piece, weight in s.pieces if weight}
    assert weights == pytest.approx({"moon": 2.0})
    assert [name for name, _ in result.top_words] == ["a", "b", "c"]
    assert "any other class" in explain_page.page(result)


def test_the_choice_has_documents_of_every_class_and_one_error():
    texts = [f"good word number {k}" if k % 3 else f"bad word number {k}" for k in range(60)]
    labels = np.array([k % 2 for k in range(60)])
    documents = tokenize([f"d{k}" for k in range(60)], texts, labels, ("bad", "good"))
    documents = replace(documents, sentence_offsets=documents.offsets)
    data = DocumentSplits(
        "corpus", documents.select(np.arange(40)), documents.select([0]), documents.select(np.arange(40, 60))
    )
    words = bag(data)
    table = np.zeros(len(words.layout))
    table[words.layout.words.index("good")], table[words.layout.words.index("bad")] = 1.0, -1.0
    result = explain.explain(data, words, table, np.zeros(1), None)
    assert {d.label for d in result.documents if d.part == "train" and d.right} == {"bad", "good"}
    assert sum(not d.right for d in result.documents) == 1
    assert len({(d.part, d.name) for d in result.documents}) == len(result.documents) <= 2 * explain.DOCUMENTS + 1
    numbers = replace(documents, labels=labels + 0.5, classes=None)
    result = explain.explain(DocumentSplits("numbers", *[numbers] * 3), words, table, np.zeros(1), None, loss="squared")
    assert {d.label for d in result.documents} == {"0.5", "1.5"}


def test_predicted_numbers_are_shown():
    data = corpus((1.5, -0.5, 0.25, 2.0), None)
    result, *_ = explained(data, {"moon": 1.0}, 0.25, loss="squared")
    assert result.documents[0].label == "1.5"
    assert result.documents[0].predicted == "2.25"
    assert result.documents[0].probability is None
    assert "predicted 2.25" in explain_page.page(result)


def test_a_dead_model_can_be_explained():
    result, *_ = explained(corpus(), {"moon": 0.0}, cover=word_groups.sentences)
    assert not any(s.lives for document in result.documents for s in document.sentences)
    assert "no word has a weight for it" in explain_page.page(result)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"shown": [("train", 9)]}, "document 9 of train, expected a number from 0 to 2"),
        ({"shown": [("trian", 0)]}, "no part 'trian'"),
        ({"table": np.zeros(3)}, "weights \\(3,\\)"),
        ({"bias": np.zeros(2)}, "biases \\(2,\\)"),
    ],
)
def test_what_does_not_fit_is_refused(change, fragment):
    data = corpus()
    words = bag(data)
    given = {"table": np.zeros(len(words.layout)), "bias": np.zeros(1), "shown": None} | change
    with pytest.raises(UserError, match=fragment):
        explain.explain(data, words, given["table"], given["bias"], None, given["shown"])


# --- the page


NASTY = [
    '<script>alert("x")</script> moon. & "quoted" <img src=http://a.b/c> \x1b[31mred\u202e. Done. \ud800 moon',
    *TEXTS[1:],
]


class Reader(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.tags, self.attributes, self.texts = Counter(), [], []
        self.ids, self.open = Counter(), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes += [(tag, *pair) for pair in attributes]
        self.ids.update(value for name, value in attributes if name == "id")
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def test_the_page_escapes_texts_and_loads_nothing(tmp_path):
    data = corpus(classes=("<i>med", 'spa"ce'), texts=NASTY)
    cover = word_groups.sentences((len(bag(data).layout),), bag(data).layout)
    words = bag(data)
    table = np.zeros(len(words.layout))
    table[words.layout.words.index("moon")] = 1.0
    named = replace(data, name="<u>posts")
    explain.write(tmp_path, explain.explain(named, words, table, np.zeros(1), cover, [("train", 0), ("test", 0)]))
    page = (tmp_path / "explanation.html").read_text()
    read = Reader(page)
    assert read.open == []
    assert read.tags["script"] == read.tags["style"] == 1
    assert not {"img", "link", "iframe", "i>med", "u", "b2"} & set(read.tags)
    assert not [a for a in read.attributes if a[1] in ("src", "srcset", "action", "background")]
    assert all(value.startswith("#") for _, name, value in read.attributes if name == "href")
    assert not [a for a in read.attributes if a[1].startswith("on")]
    assert not re.search(r"url\(|@import", STYLE)
    assert "default-src 'none'" in page
    assert max(read.ids.values()) == 1
    assert {value[1:] for _, name, value in read.attributes if name == "href"} <= set(read.ids)
    labelled = [value for _, name, value in read.attributes if name == "aria-labelledby"]
    assert set(labelled) <= set(read.ids)
    shown = " ".join("".join(read.texts).split())
    assert '<script>alert("x")</script> moon.' in shown
    assert "<i>med" in shown
    assert 'spa"ce' in shown
    plain = (tmp_path / "explanation.txt").read_text()
    for text in (page, plain):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    assert "yes         " in plain
    assert "<script>" in plain


def test_the_text_marks_selected_sentences(tmp_path):
    result, *_ = explained(corpus(), {"moon": 1.0}, shown=[("train", 0)])
    lines = explain_text.text(result).splitlines()
    (moon,) = [line for line in lines if "The moon is bright." in line]
    assert re.match(r"yes +\+\d\.\d{3}  The moon is bright\.$", moon)
    (doctors,) = [line for line in lines if "Doctors agree (they say)." in line]
    assert re.match(r"no +\+0\.000  Doctors", doctors)


def test_numbers_have_a_real_minus_and_zero_no_sign():
    assert explain_page.number(-0.5, "+.2f") == "\N{MINUS SIGN}0.50"
    assert explain_page.number(-0.0001, "+.2f") == "0.00"
    assert explain_page.number(0.25, "+.2f") == "+0.25"


def test_shades_grow_with_the_weight():
    levels = [shade(weight, 2.0) for weight in (0.01, 0.6, 1.1, 1.9, 5.0, -0.01, -9.0)]
    assert levels == ["p1", "p2", "p3", "p4", "p4", "n1", "n4"]


SEEN = """<script>
const seen = [...document.querySelectorAll("mark.selected, .unselected")].filter(e => e.closest("td")).map(e => {
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  return {selected: e.matches("mark.selected"), width: box.width, height: box.height, colour: style.color,
    hidden: style.visibility !== "visible" || style.opacity === "0", text: e.textContent};
});
const paper = getComputedStyle(document.body).backgroundColor;
const wide = document.documentElement.scrollWidth <= window.innerWidth;
document.body.setAttribute("data-seen", JSON.stringify({seen, paper, wide}));
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium; on Debian: apt-get install -y chromium")
@pytest.mark.parametrize("width", [1200, 420])
def test_selected_sentences_are_visible_in_a_browser(tmp_path, width):
    result, *_ = explained(corpus(), {"moon": 1.0, "doctor": -1.0}, cover=word_groups.sentences)
    page = tmp_path / "page.html"
    page.write_text(explain_page.page(result).replace("</body>", f"{SEEN}</body>"))
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --dump-dom"
    ).split()
    flags += [f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run([CHROMIUM, *flags, page.as_uri()], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (attribute,) = [value for tag, name, value in Reader(done.stdout).attributes if name == "data-seen"]
    answer = json.loads(attribute)
    expected = [(s.lives, s.text) for document in result.documents for s in document.sentences]
    assert [(one["selected"], one["text"]) for one in answer["seen"]] == expected
    assert any(lives for lives, _ in expected)
    for one in answer["seen"]:
        assert not one["hidden"]
        assert min(one["width"], one["height"]) > 5
        assert contrast(one["colour"], answer["paper"]) >= 4.5
    assert answer["wide"]  # nothing overflows to the right
    assert 'type="search"' in done.stdout  # made by the script


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by the Web Content Accessibility Guidelines."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([light(one), light(other)])
    return (high + 0.05) / (low + 0.05)
