"""What a classifier looked at: sentences, phrases, groups and words, as a page and as text."""

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
from structsparse.corpora.documents import Constituents, Labelled, tokenize
from structsparse.features import word_groups
from structsparse.features.words import bag
from structsparse.groups import cover_rows
from structsparse.tasks.textcat.explain import explain
from structsparse.tasks.textcat.explain import page as explain_page
from structsparse.tasks.textcat.explain import text as explain_text
from structsparse.tasks.textcat.explain.phrases import phrases_of
from structsparse.tasks.textcat.explain.style import STYLE

TEXTS = [
    "The moon is bright. Doctors agree (they say).  \"Bright moon!\" he said.",
    "A doctor came & went. The <b>rocket</b> failed. Nothing else happened.",
    "Rockets fly. The doctor sleeps. So what?",
    "Moon and rocket. A long night passed.",
]  # fmt: skip
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def split(documents):
    """Sentences end at . ! ? before a space."""
    first = []
    for low, high, text in zip(documents.offsets[:-1], documents.offsets[1:], documents.texts, strict=True):
        after = [0, *(match.end() for match in re.finditer(r"[.!?][)\"]*\s+", text))]
        first += [low + np.searchsorted(documents.begins[low:high], place) for place in after]
    return replace(documents, sentence_offsets=np.unique([*first, len(documents.tokens)]))


def corpus(labels=(1, 0, 0, 1), classes=("med", "space"), texts=TEXTS) -> Labelled:
    labels = np.array(labels, np.int64 if classes else np.float64)
    names = [f"post/{k}" for k in range(len(texts))]
    documents = split(tokenize(names, texts, labels, classes))
    return Labelled("posts", documents.select([0, 1, 2]), documents.select([2]), documents.select([3, 1]))


def told(data: Labelled, weights: dict, bias=0.0, cover=None, shown=None, weighting="counts", **other):
    """The explanation of a model with weights of some words."""
    made = bag(data, weighting)
    width = len(next(iter(weights.values()))) if isinstance(next(iter(weights.values())), tuple) else None
    table = np.zeros(len(made.layout) if width is None else (len(made.layout), width))
    for word, weight in weights.items():
        table[made.layout.words.index(word)] = weight
    cover = None if cover is None else cover((table.shape), made.layout)
    every = [(part, k) for part in ("train", "test") for k in range(len(data.parts[part]))]
    bias = np.full(width or 1, bias)
    return (
        explain.explain(data, made, table, bias, cover, every if shown is None else shown, **other),
        made,
        table,
        bias,
    )


def text_of(sentence) -> str:
    return "".join(piece for piece, _ in sentence.pieces)


# --- what leaving out a sentence costs


@pytest.mark.parametrize("weighting", ["counts", "log", "tfidf"])
@pytest.mark.parametrize(
    ("loss", "classes"),
    [
        ("logistic", ("med", "space")), ("logistic", ("med", "space", "other")), ("squared_hinge", ("med", "space")),
        ("squared_hinge", ("med", "space", "other")), ("squared", None), ("squared", ("med", "space")),
    ],
)  # fmt: skip
def test_a_change_is_that_of_the_document_without_the_sentence(weighting, loss, classes):
    """By writing the document anew, and by formulas of their own."""
    data = corpus(classes=classes)
    rng = np.random.default_rng(3)
    names = ["moon", "rocket", "doctor", "bright", "the", "a"]
    many = classes is not None and len(classes) > 2
    weights = {name: tuple(rng.normal(size=3)) if many else float(rng.normal()) for name in names}
    found, made, table, bias = told(data, weights, 0.3, weighting=weighting, loss=loss)
    checked = 0
    for document, (part, number) in zip(
        found.documents, [*(("train", k) for k in range(3)), ("test", 0), ("test", 1)], strict=True
    ):
        label = data.parts[part].labels[number]
        for left in range(len(document.sentences)):
            texts = [
                "".join(text_of(s) for k, s in enumerate(document.sentences) if k != gone) for gone in (None, left)
            ]
            matrix = made.matrix(tokenize(["a", "b"], texts, np.zeros(2), None))
            values = [value(row, label, loss, classes) for row in np.asarray(matrix @ table + bias)]
            assert document.sentences[left].change == pytest.approx(values[0] - values[1], abs=1e-12)
            checked += abs(values[0] - values[1]) > 1e-6
    assert checked > 6
    assert found.measure == ("log-odds" if loss == "logistic" else "score")


def value(scores, label, loss: str, classes) -> float:
    if classes is None:
        return float(scores)
    if len(classes) == 2:
        margin = scores if label == 1 else -scores
        return float(np.log(1 / (1 + np.exp(-margin)))) if loss == "logistic" else float(margin)
    chosen = float(scores[int(label)])
    return float(np.log(np.exp(chosen) / np.exp(scores).sum())) if loss == "logistic" else chosen


def test_a_document_of_one_sentence_is_left_with_the_bias():
    found, *_ = told(corpus(texts=["moon rocket", *TEXTS[1:]]), {"moon": 1.0}, -0.2, shown=[("train", 0)])
    (sentence,) = found.documents[0].sentences
    assert sentence.change == pytest.approx(-np.log1p(np.exp(-0.8)) + np.log1p(np.exp(0.2)))


def test_certainty_and_prediction_are_those_of_the_model():
    found, *_ = told(corpus(), {"moon": 1.0, "doctor": -2.0}, 0.5)
    first, second = found.documents[:2]
    assert (first.predicted, first.right) == ("space", True)
    assert first.certainty == pytest.approx(1 / (1 + np.exp(-2.5)))
    assert (second.predicted, second.right) == ("med", True)
    hinge, *_ = told(corpus(), {"moon": 1.0}, loss="squared_hinge")
    assert hinge.documents[0].certainty is None
    assert not hinge.documents[1].right or hinge.documents[1].predicted == "med"


# --- which sentences and phrases live


def test_the_sentences_of_training_are_selected_by_their_groups():
    data = corpus()
    found, *_ = told(data, {"moon": 1.0, "doctor": -1.0}, cover=word_groups.sentences)
    lives = [[sentence.lives for sentence in document.sentences] for document in found.documents]
    assert lives == [
        [True, False, True, False],
        [True, False, False],
        [False, True, False],
        [True, False],
        [True, False, False],
    ]
    (kind,) = found.kinds
    cover = word_groups.sentences((len(bag(data).layout),), bag(data).layout)
    alive = np.zeros(len(cover), bool)  # a solver knows better
    alive[1] = True
    found, *_ = told(data, {"moon": 1.0, "doctor": -1.0}, cover=word_groups.sentences, alive=alive)
    names = {cover.names[1]}
    selected = [
        f"sentence {k + 1} of {document.name}"
        for document in found.documents
        for k, sentence in enumerate(document.sentences)
        if sentence.lives and document.part == "train"
    ]
    assert set(selected) == names
    assert [s.lives for s in found.documents[-1].sentences] == [True, False, False]  # the same text in test has none
    assert (kind.living, kind.dead) == (4, len(cover) - 4)


def test_an_opening_quote_belongs_to_the_sentence_after_it():
    found, *_ = told(corpus(), {"moon": 1.0}, shown=[("train", 0)])
    assert [text_of(sentence) for sentence in found.documents[0].sentences] == [
        "The moon is bright. ", "Doctors agree (they say).  ", '"Bright moon!" ', "he said.",
    ]  # fmt: skip


def test_without_groups_a_sentence_is_selected_by_its_words():
    bare, *_ = told(corpus(), {"rocket": 1.0})
    assert [s.lives for s in bare.documents[1].sentences] == [False, True, False]
    assert bare.kinds == ()
    others, *_ = told(corpus(), {"rocket": 1.0}, cover=lambda shape, layout: cover_rows(shape, [[0, 1], [2, 3]]))
    assert [s.lives for s in others.documents[1].sentences] == [False, True, False]


@given(st.lists(st.text(alphabet=" \n.!?()\"'<>ab\tÄ\u200f", min_size=0, max_size=30), min_size=1, max_size=4))
def test_the_sentences_are_the_whole_text(texts):
    texts = ["a.", *texts]
    labels = np.zeros(len(texts), np.int64)
    documents = split(tokenize([f"{k}" for k in range(len(texts))], texts, labels, ("x", "y")))
    data = Labelled("some", documents, documents, documents)
    found, *_ = told(data, {"a": 1.0}, shown=[("train", k) for k in range(len(texts))])
    for document, text, length in zip(found.documents, texts, documents.lengths, strict=True):
        assert "".join(map(text_of, document.sentences)) == (text if length else "")
        weighed = [piece for sentence in document.sentences for piece, weight in sentence.pieces if weight]
        assert len(weighed) == sum(word.lower() == "a" for word in re.findall(r"\w+", text))
    assert explain_page.page(found)
    assert explain_text.text(found)


def tree(text: str, spans: dict, weights: dict):
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


def test_several_trees_and_words_that_are_no_constituents():
    one, other = tree("a b c d e", {(0, 3): -1, (3, 5): -1, (1, 3): -1}, {"c": 1.0})
    assert (explain_text.bracketed(one), explain_text.bracketed(other)) == ("([a] ([b] c))", "[d e]")
    assert all(label == "" for label in (one.label, other.label))
    crossing = tree("a b c d", {(0, 3): -1, (1, 4): -1}, {"b": 1.0})  # which is no tree
    assert [word for root in crossing for word in root.words][:3] == ["a", "b", "c"]


def test_constituents_with_kinds_are_called_by_them():
    documents = tokenize(["x"], ["a b"], np.zeros(1, np.int64), ("a", "b"))
    kinds = {"kind": np.array([1], np.int16), "kinds": ("VP", "NP")}
    found = Constituents(np.zeros(1, np.int32), np.array([0]), np.array([2]), np.array([-1], np.int16), **kinds)
    (root,) = phrases_of(replace(documents, constituents=found), 0, np.ones(2), lambda a, b: True)
    assert root.label == "NP"
    assert ">NP<" in explain_page.drawing(root, 1.0)


# --- groups and words


def test_groups_are_told_living_first_by_norm_and_then_the_largest_dead_ones():
    def cover(shape, layout):
        rows = [[layout.words.index(word) for word in words] for words in (
            ("moon", "night"), ("rocket", "moon", "so"), ("what", "so"), ("what", "so", "sleeps", "nothing"),
        )]  # fmt: skip
        names = [f"topic {k}: some" for k in range(len(rows))]
        return cover_rows(shape, rows, names=names, weights="one")

    data = corpus()
    data = replace(data, train=data.parts["train"].select([0, 1, 2]), test=data.test)
    every = split(tokenize([*"abcd"], TEXTS, np.array([1, 0, 0, 1]), ("med", "space")))
    data = Labelled("posts", every, every, every)
    found, *_ = told(data, {"moon": 3.0, "rocket": -4.0}, cover=cover)
    (kind,) = found.kinds
    assert (kind.name, kind.living, kind.dead) == ("topics", 2, 2)
    assert [(group.name, group.lives) for group in kind.shown] == [
        ("topic 1: some", True), ("topic 0: some", True), ("topic 3: some", False), ("topic 2: some", False),
    ]  # fmt: skip
    assert kind.shown[0].norm == pytest.approx(5.0)
    assert [(m.word, m.weight) for m in kind.shown[0].members] == [("rocket", -4.0), ("moon", 3.0), ("so", 0.0)]
    assert dict(found.tops) == {"med": (("rocket", 4.0),), "space": (("moon", 3.0),)}
    both, *_ = told(
        data, {"moon": 1.0}, cover=lambda *a: word_groups.combined(*a, parts={"sentences": 1, "documents": 1})
    )
    assert [kind.name for kind in both.kinds] == ["sentences", "documents"]
    assert sum(kind.living + kind.dead for kind in both.kinds[1:]) == 4


def test_of_very_many_groups_a_few_are_shown_with_a_few_words():
    rng = np.random.default_rng(0)
    words = [f"w{k}" for k in range(300)]
    data = Labelled("many", *[tokenize(["x", "y"], [" ".join(words), "w1"], np.array([0, 1]), ("a", "b"))] * 3)

    def cover(shape, layout):
        return cover_rows(shape, [rng.choice(300, 20, replace=False).tolist() for _ in range(500)], weights="one")

    found, *_ = told(data, {f"w{k}": float(k) for k in range(1, 40)}, cover=cover, shown=[])
    (kind,) = found.kinds
    assert kind.living + kind.dead == 500
    assert len(kind.shown) <= 2 * explain.GROUPS
    assert all(len(group.members) == explain.MEMBERS and group.size == 20 for group in kind.shown)
    norms = [group.norm for group in kind.shown if group.lives]
    assert norms == sorted(norms, reverse=True)
    assert f"{kind.living:,} live" in explain_page.page(found)


def test_a_path_is_told_from_its_folder_on_and_a_long_name_is_cut():
    assert explain.short("sentence 3 of /a/b/c/file.txt:9") == "sentence 3 of c/file.txt:9"
    assert explain.short("and/or") == "and/or"
    assert len(explain.short("x" * 500)) == explain.LONGEST + 1


def test_of_several_classes_a_document_is_coloured_towards_its_own():
    data = corpus((2, 0, 1, 0), ("a", "b", "c"))
    found, *_ = told(data, {"moon": (0.0, 0.0, 3.0), "doctor": (1.0, 0.0, -1.0)})
    weights = {piece: weight for s in found.documents[0].sentences for piece, weight in s.pieces if weight}
    assert weights == pytest.approx({"moon": 2.0})
    assert [name for name, _ in found.tops] == ["a", "b", "c"]
    assert "any other class" in explain_page.page(found)


def test_documents_are_chosen_of_every_class_and_one_that_is_mistaken():
    texts = [f"good word number {k}" if k % 3 else f"bad word number {k}" for k in range(60)]
    labels = np.array([k % 2 for k in range(60)])
    documents = tokenize([f"d{k}" for k in range(60)], texts, labels, ("bad", "good"))
    documents = replace(documents, sentence_offsets=documents.offsets)
    data = Labelled("some", documents.select(np.arange(40)), documents.select([0]), documents.select(np.arange(40, 60)))
    made = bag(data)
    table = np.zeros(len(made.layout))
    table[made.layout.words.index("good")], table[made.layout.words.index("bad")] = 1.0, -1.0
    found = explain.explain(data, made, table, np.zeros(1), None)
    assert {d.label for d in found.documents if d.part == "train" and d.right} == {"bad", "good"}
    assert sum(not d.right for d in found.documents) == 1
    assert len({(d.part, d.name) for d in found.documents}) == len(found.documents) <= 2 * explain.DOCUMENTS + 1
    numbers = replace(documents, labels=labels + 0.5, classes=None)
    found = explain.explain(Labelled("numbers", *[numbers] * 3), made, table, np.zeros(1), None, loss="squared")
    assert {d.label for d in found.documents} == {"0.5", "1.5"}


def test_numbers_are_predicted():
    data = corpus((1.5, -0.5, 0.25, 2.0), None)
    found, *_ = told(data, {"moon": 1.0}, 0.25, loss="squared")
    assert found.documents[0].label == "1.5"
    assert found.documents[0].predicted == "2.25"
    assert found.documents[0].certainty is None
    assert "predicted 2.25" in explain_page.page(found)


def test_nothing_that_lives_is_no_error():
    found, *_ = told(corpus(), {"moon": 0.0}, cover=word_groups.sentences)
    assert not any(s.lives for document in found.documents for s in document.sentences)
    assert "no word speaks for it" in explain_page.page(found)


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
    made = bag(data)
    given = {"table": np.zeros(len(made.layout)), "bias": np.zeros(1), "shown": None} | change
    with pytest.raises(UserError, match=fragment):
        explain.explain(data, made, given["table"], given["bias"], None, given["shown"])


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


def test_the_page_says_what_the_texts_say_and_nothing_runs_or_loads(tmp_path):
    data = corpus(classes=("<i>med", 'spa"ce'), texts=NASTY)
    cover = word_groups.sentences((len(bag(data).layout),), bag(data).layout)
    made = bag(data)
    table = np.zeros(len(made.layout))
    table[made.layout.words.index("moon")] = 1.0
    named = replace(data, name="<u>posts")
    explain.write(tmp_path, explain.explain(named, made, table, np.zeros(1), cover, [("train", 0), ("test", 0)]))
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


def test_the_text_marks_what_is_selected(tmp_path):
    found, *_ = told(corpus(), {"moon": 1.0}, shown=[("train", 0)])
    lines = explain_text.text(found).splitlines()
    (moon,) = [line for line in lines if "The moon is bright." in line]
    assert re.match(r"yes +\+\d\.\d{3}  The moon is bright\.$", moon)
    (doctors,) = [line for line in lines if "Doctors agree (they say)." in line]
    assert re.match(r"no +\+0\.000  Doctors", doctors)


def test_numbers_have_a_real_minus_and_zero_no_sign():
    assert explain_page.number(-0.5, "+.2f") == "\N{MINUS SIGN}0.50"
    assert explain_page.number(-0.0001, "+.2f") == "0.00"
    assert explain_page.number(0.25, "+.2f") == "+0.25"


def test_shades_grow_with_the_weight():
    levels = [explain_page.shade(weight, 2.0) for weight in (0.01, 0.6, 1.1, 1.9, 5.0, -0.01, -9.0)]
    assert levels == ["p1", "p2", "p3", "p4", "p4", "n1", "n4"]


SEEN = """<script>
const seen = [...document.querySelectorAll("mark.kept, .left")].filter(e => e.closest("td")).map(e => {
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  return {kept: e.matches("mark.kept"), width: box.width, height: box.height, colour: style.color,
    hidden: style.visibility !== "visible" || style.opacity === "0", text: e.textContent};
});
const paper = getComputedStyle(document.body).backgroundColor;
const wide = document.documentElement.scrollWidth <= window.innerWidth;
document.body.setAttribute("data-seen", JSON.stringify({seen, paper, wide}));
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium; on Debian: apt-get install -y chromium")
@pytest.mark.parametrize("width", [1200, 420])
def test_the_selected_sentences_are_seen_in_a_browser(tmp_path, width):
    found, *_ = told(corpus(), {"moon": 1.0, "doctor": -1.0}, cover=word_groups.sentences)
    page = tmp_path / "page.html"
    page.write_text(explain_page.page(found).replace("</body>", f"{SEEN}</body>"))
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --dump-dom"
    ).split()
    flags += [f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run([CHROMIUM, *flags, page.as_uri()], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (attribute,) = [value for tag, name, value in Reader(done.stdout).attributes if name == "data-seen"]
    said = json.loads(attribute)
    wanted = [(s.lives, text_of(s)) for document in found.documents for s in document.sentences]
    assert [(one["kept"], one["text"]) for one in said["seen"]] == wanted
    assert any(lives for lives, _ in wanted)
    for one in said["seen"]:
        assert not one["hidden"]
        assert min(one["width"], one["height"]) > 5
        assert contrast(one["colour"], said["paper"]) >= 4.5
    assert said["wide"]  # nothing is beyond the right edge
    assert 'type="search"' in done.stdout  # which the script makes


def contrast(one: str, other: str) -> float:
    """As the accessibility guidelines of the web have it."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([light(one), light(other)])
    return (high + 0.05) / (low + 0.05)
