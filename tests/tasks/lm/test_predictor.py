"""A language model in use: probabilities against sums over all words, words drawn, text files, artifact and exports."""

import gzip
import hashlib
import io
import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse import load
from structsparse.artifacts.quantization import round_
from structsparse.base.errors import UserError
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.text import END, START, UNKNOWN, Reading, Vocabulary, encode, read_coded
from structsparse.tasks.lm import artifact as language_artifact
from structsparse.tasks.lm import export, stream
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.tasks.lm.sampling import Sampler
from structsparse.tasks.tagging import artifact

SIGNS = {"positive": (0.0, 1.0), "signed": (-0.7, 0.7)}


def sentences(seed: int, count: int = 40, words: int = 9) -> list[list[str]]:
    """Frequent words and rare ones, and sentences that begin alike."""
    draw = random.Random(seed)
    vocabulary = [f"w{k}" for k in range(words)]
    weights = [1 / (k + 1) for k in range(words)]
    return [
        [*["w0", "w1"][: draw.randrange(3)], *draw.choices(vocabulary, weights, k=draw.randrange(1, 7))]
        for _ in range(count)
    ]


def model_of(seed=0, order=4, alpha=0.9, base=True, signs="positive", dead=0.4, size=1.0, count=40) -> LanguageModel:
    """Random weights for all contexts of a small text; so many of them zero."""
    generator = np.random.default_rng(seed)
    text = encode(sentences(seed, count))
    tree = ContextTree.build(text, order)
    low, high = SIGNS[signs]
    table = size * generator.uniform(low, high, tree.entries) * (generator.random(tree.entries) >= dead)
    start = generator.normal(size=len(text.vocabulary)) if base else None
    return LanguageModel.of(tree, table, alpha, start)


class Dense:
    """The same model by its definition: weights by context and word, and sums over all words."""

    def __init__(self, model: LanguageModel):
        self.words = model.vocabulary.words
        self.base = dict(zip(self.words, np.zeros(len(self.words)) if model.base is None else model.base, strict=True))
        self.weights = {}
        names = [*self.words, START]
        for node in range(model.trie.nodes):
            context = tuple(names[code] for code in model.trie.context(node))
            for entry in range(*model.trie.starts[node : node + 2]):
                word = names[model.trie.entry_word[entry]]
                self.weights[context, word] = float(model.weights[entry]) * model.alpha ** len(context)

    def scores(self, before: list[str]) -> dict[str, float]:
        suffixes = [tuple(before[k:]) for k in range(len(before) + 1)]
        return {word: self.base[word] + sum(self.weights.get((c, word), 0.0) for c in suffixes) for word in self.words}

    def chances(self, before: list[str]) -> dict[str, float]:
        scores = self.scores(before)
        most = max(scores.values())
        z = math.fsum(math.exp(score - most) for score in scores.values())
        return {word: math.exp(score - most) / z for word, score in scores.items()}

    def log_probabilities(self, sentence: list[str]) -> list[float]:
        known = [word if word in self.words else UNKNOWN for word in sentence]
        before = [START, *known]
        return [math.log(self.chances(before[: k + 1])[word]) for k, word in enumerate([*known, END])]


# --- probabilities


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    order=st.integers(1, 5),
    alpha=st.sampled_from([0.5, 1.0, 1.2]),
    base=st.booleans(),
    signs=st.sampled_from([*SIGNS]),
    dead=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_log_probabilities_are_those_of_a_softmax_over_all_words(seed, order, alpha, base, signs, dead):
    model = model_of(seed, order, alpha, base, signs, dead)
    given = sentences(seed + 1, 5, 12)  # some words are unknown
    expected = [chance for sentence in given for chance in Dense(model).log_probabilities(sentence)]
    np.testing.assert_allclose(model.log_probabilities(model.encode(given)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [20.0, 60.0, 3000.0])
def test_masses_that_cancel_or_overflow_are_added_up_anew(size):
    """Where a context forbids nearly all that is likely above it, a difference would have no digit left."""
    model = model_of(3, 4, signs="signed", dead=0.2, size=size)
    dense = Dense(model)
    for node in range(model.trie.nodes):
        scores = dense.scores([[*dense.words, START][code] for code in model.trie.context(node)]).values()
        expected = max(scores) + math.log(math.fsum(math.exp(score - max(scores)) for score in scores))
        assert model.log_z[node] == pytest.approx(expected, rel=1e-12, abs=1e-11)


def test_small_losses_of_mass_add_up():
    """Every context forbids what is likely above it: a thousandth of the mass remains, of that a thousandth, ..."""
    words = [f"w{k}" for k in range(6)]
    tree = ContextTree.build(encode([["c"] * 5 + [word] for word in words]), 6)
    codes, names = tree.vocabulary.codes, tree.vocabulary.words
    base = np.array([-7.0 * words.index(word) if word in words else -100.0 for word in names])
    forbidden = np.array([codes[f"w{depth - 1}"] for depth in range(1, 6)])
    depth = tree.depth[tree.entry_node]
    weights = np.where((depth > 0) & (tree.entry_word == forbidden[depth - 1]), -50.0, 0.0)
    model = LanguageModel.of(tree, weights, base=base)
    for length in range(6):
        context = ["c"] * length
        assert model.log_z[model.trie.path([codes["c"]] * length)[-1]] == pytest.approx(-7 * length, abs=0.01)
        chances = Dense(model).chances(context)
        np.testing.assert_allclose(model.distribution(context), [chances[word] for word in names], rtol=1e-10)


def test_the_model_is_that_of_training():
    torch = pytest.importorskip("torch")
    from structsparse.tasks.lm.model import NgramModel

    text = encode(sentences(5))
    trained = NgramModel(ContextTree.build(text, 4), alpha=0.8, base="unigram").double()
    with torch.no_grad():
        trained.table.copy_(torch.rand(trained.table.shape) * (torch.rand(trained.table.shape) < 0.5))
    model = LanguageModel.of(trained.tree, trained.table.detach(), trained.alpha, trained.base)
    test = model.encode(sentences(6, 20, 12))
    expected = trained.log_probabilities(trained.tree.locate(test)).numpy()
    np.testing.assert_allclose(model.log_probabilities(test), expected, rtol=0, atol=1e-10)


def test_a_collapsed_tree_is_refused():
    tree = ContextTree.build(encode(sentences(5)), 4, collapse=True)
    with pytest.raises(UserError, match="made from a trie"):
        LanguageModel.of(tree, np.zeros(tree.entries))


def test_a_text_in_other_codes_is_refused():
    model = model_of()
    other = encode([["elsewhere"]])
    with pytest.raises(UserError, match="coded for another model"):
        model.log_probabilities(other)
    same = encode([["w1"]], Vocabulary(model.vocabulary.words))
    assert len(model.log_probabilities(same)) == 2


def test_perplexity_over_known_words_and_over_all():
    model, dense = model_of(), None
    dense = Dense(model)
    given = [["w0", "strange", "w1"], ["w2", UNKNOWN]]
    known = [[True, False, True, True], [True, True, True]]
    chances = [dense.log_probabilities(sentence) for sentence in given]
    of_known = [c for cs, ks in zip(chances, known, strict=True) for c, k in zip(cs, ks, strict=True) if k]
    figures = model.evaluate(given)
    assert figures["perplexity"] == pytest.approx(math.exp(-np.mean(of_known)), rel=1e-12)
    assert figures["perplexity_open"] == pytest.approx(math.exp(-np.mean(sum(chances, []))), rel=1e-12)
    assert (figures["targets"], figures["unknown"]) == (6, 1)


# --- next words


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize(
    "context", ["", "w0", "w1 w0", "<s>", "<s> w0 w1", "w5 nothing w1", "w1 <s> w0", "w0 w0 w0 w1 w0"]
)
def test_the_distribution_after_any_context(context, signs):
    model = model_of(2, signs=signs)
    dense = Dense(model).chances([w if w in (*model.vocabulary.words, START) else UNKNOWN for w in context.split()])
    found = model.distribution(context)
    np.testing.assert_allclose(found, [dense[word] for word in model.vocabulary.words], atol=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_array_equal(model.distribution(context.split()), found)


def test_next_words_are_the_most_probable_and_say_why():
    model = model_of(2)
    dense = Dense(model)
    for context in (["w1", "w0"], [START, "w0"], [UNKNOWN]):
        chances = dense.chances(context)
        found = model.next_words(context, 5)
        assert [word.probability for word in found] == pytest.approx(sorted(chances.values(), reverse=True)[:5])
        for word in found:
            parts = {part.context: part.weight for part in word.parts}
            suffixes = [tuple(context[k:]) for k in reversed(range(len(context) + 1))]
            own = {c: dense.weights[c, word.word] for c in suffixes if dense.weights.get((c, word.word))}
            own[()] = dense.weights[(), word.word] + dense.base[word.word]
            assert word.probability == pytest.approx(chances[word.word])
            assert parts == pytest.approx(own)
            assert [*parts] == [c for c in suffixes if c in own]  # from the empty one on
    assert any(len(word.parts) > 2 for word in model.next_words("w1 w0", 9))


def test_more_words_than_there_are():
    model = model_of()
    assert {word.word for word in model.next_words("w0", 10**6)} == {*model.vocabulary.words}
    with pytest.raises(UserError, match="the 0 most probable words"):
        model.next_words("w0", 0)


def test_contexts_are_read_as_training_read_its_text():
    model = replace(model_of(2), reading=Reading(tokens="words", lower=True))
    np.testing.assert_array_equal(model.distribution("W1, W0"), model.distribution(["w1", ",", "w0"]))
    assert model.unknown_words("<s> W1, W0 W99") == [",", "w99"]
    assert model.unknown_words("W99 </s> W1") == []  # another sentence begins there


def test_contexts_are_the_living_ones():
    model = model_of(2, base=False)
    found = {(context.words, word): weight for context in model.contexts() for word, weight in context.weights.items()}
    assert found == pytest.approx({key: weight for key, weight in Dense(model).weights.items() if weight})
    lengths = [len(context.words) for context in model.contexts()]
    assert lengths == sorted(lengths)


# --- drawing


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("signs", SIGNS)
def test_words_are_drawn_as_often_as_their_probability_says(signs, temperature):
    model = model_of(2, signs=signs, size=2.0)
    generator = np.random.default_rng(0)
    sampler = Sampler(model.trie, model.scores, temperature)
    for context in ([], [model.vocabulary.start], [0, 1, 0]):
        names = [[*model.vocabulary.words, START][code] for code in context]
        expected = model.distribution(names) ** (1 / temperature)
        expected /= expected.sum()
        draws = 4000
        found = np.bincount([sampler.draw(context, generator) for _ in range(draws)], minlength=len(expected))
        spread = np.sqrt(draws * expected * (1 - expected))
        assert (np.abs(found - draws * expected) <= 4.5 * spread + 1).all()


def test_what_is_rejected_ever_again_is_drawn_among_all():
    """After `a` the one word that is likely elsewhere is even less so than all others."""
    tree = ContextTree.build(encode([["a", "b"]] * 3 + [["c"]]), 2)
    model = LanguageModel.of(tree, np.zeros(tree.entries))
    words, base = model.vocabulary.codes, np.full(len(model.vocabulary), -60.0)
    base[words["b"]] = 0.0
    weights = np.where((tree.entry_node > 0) & (tree.entry_word == words["b"]), -80.0, 0.0)
    model = LanguageModel.of(tree, weights, base=base)
    sampler, generator = Sampler(model.trie, model.scores, 1.0), np.random.default_rng(0)
    drawn = [sampler.draw([words["a"]], generator) for _ in range(60)]
    assert {*drawn} == {*words.values()} - {words["b"]}


def test_very_low_temperatures_draw_the_most_probable():
    model = model_of(2)
    best = model.next_words("w0 w1", 1)[0].word
    for sentence in model.sample(5, temperature=1e-5, start="w0 w1"):
        assert [*sentence, END][2] == best


def test_sentences_begin_as_told_and_end():
    model = model_of(2)
    drawn = list(model.sample(20, seed=3, start="w1 w0"))
    assert all(sentence[:2] == ["w1", "w0"] for sentence in drawn)
    assert not any({START, END} & {*sentence} for sentence in drawn)
    assert drawn == list(model.sample(20, seed=3, start=["<s>", "w1", "w0"]))
    assert drawn != list(model.sample(20, seed=4, start="w1 w0"))
    assert len({tuple(sentence) for sentence in drawn}) > 5


def test_words_are_drawn_after_all_that_stands_before_them():
    """Three words back is what decides."""
    text = encode([["a", "x", "y", "b"], ["c", "x", "y", "d"]] * 3)
    tree = ContextTree.build(text, 4)
    model = LanguageModel.of(tree, 20.0 * (tree.depth[tree.entry_node] == 3))
    drawn = [list(model.sample(20, start=start)) for start in ("a x y", "c x y")]
    assert drawn == [[["a", "x", "y", "b"]] * 20, [["c", "x", "y", "d"]] * 20]


def test_a_model_that_never_ends_a_sentence_is_stopped():
    model = model_of(2, base=True)
    model.base[model.vocabulary.end] = -1e4
    assert [len(sentence) for sentence in model.sample(2, longest=17)] == [17, 17]


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_no_other_temperatures(temperature):
    with pytest.raises(UserError, match="temperature is"):
        next(model_of().sample(1, temperature=temperature))


# --- files and streams


@pytest.mark.parametrize("block", [1, 7, 10**6])
@pytest.mark.parametrize(
    "reading", [Reading(), Reading("text", "words", lower=True, classes=True)], ids=["lines", "text"]
)
def test_files_and_streams_are_scored_alike_in_blocks_of_any_size(block, reading, tmp_path, monkeypatch):
    model = replace(model_of(2), reading=reading)
    lines = [
        " ".join(sentence) + (". Some More words, W1 w0!" if k % 3 == 0 else "")
        for k, sentence in enumerate(sentences(8))
    ]
    data = "\n".join(line + "\n" * (k % 4 == 0) for k, line in enumerate([*lines, ""])).encode()
    (tmp_path / "text").write_bytes(data)
    (tmp_path / "zipped").write_bytes(gzip.compress(data))
    whole = [text for _, text in model.stream(tmp_path / "text")]
    assert len(whole) == 1
    expected = model.log_probabilities(whole[0])
    monkeypatch.setattr(stream, "BLOCK", block)
    for source in (tmp_path / "text", tmp_path / "zipped", io.BytesIO(data)):
        blocks = [text for _, text in model.stream(source)]
        assert (len(blocks) > 1) == (block < 10**6 or (reading.sentences == "text" and isinstance(source, io.BytesIO)))
        np.testing.assert_array_equal(np.concatenate([model.log_probabilities(text) for text in blocks]), expected)


class Pipe:
    """What comes in pieces; how many have been asked for."""

    def __init__(self, *pieces: bytes):
        self.pieces, self.asked = [*pieces, b""], 0

    def read(self, size: int) -> bytes:
        self.asked += 1
        return self.pieces[self.asked - 1]


@pytest.mark.parametrize(
    ("reading", "pieces", "blocks"),
    [
        (Reading(), [b"w0 w1\nw2\nw", b"1\nw3\n"], [(1, 3), (2, 2)]),
        (Reading("text", "words"), [b"W0 w1. W2\nw3.\n\nW1\n", b"w2.\n\n"], [(1, 3), (1, 3), (2, 3)]),
    ],
)
def test_what_has_arrived_does_not_wait_for_more(reading, pieces, blocks):
    """How many pieces had been asked for at each block, and the words of the block."""
    model, pipe = replace(model_of(), reading=reading), Pipe(*pieces)
    assert [(pipe.asked, coded.tokens) for coded, _ in model.stream(pipe)] == blocks


def test_a_fault_comes_after_the_sentences_before_it():
    blocks = model_of().stream(io.BytesIO(b"w0 w1\nw1\n\xff w0\nw0\n"))
    assert next(blocks)[0].tokens == 3
    with pytest.raises(UserError, match="line 3: byte 0xff is not UTF-8"):
        next(blocks)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"  \n"])
def test_text_without_words_is_refused(data, tmp_path):
    (tmp_path / "empty").write_bytes(data)
    for source in (io.BytesIO(data), tmp_path / "empty"):
        with pytest.raises(UserError, match="has no words, expected text"):
            list(model_of().stream(source))


# --- the artifact


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    order=st.integers(1, 6),
    base=st.booleans(),
    dead=st.sampled_from([0.0, 0.5, 1.0]),
    steps=st.sampled_from([0, 2]),  # rounded to so many levels, many weights equal those above
)
def test_what_is_loaded_is_what_was_saved(seed, order, base, dead, steps, tmp_path_factory):
    model = model_of(seed, order, 0.7, base, "signed", dead)
    if steps:
        model = replace(model, weights=np.round(model.weights * steps) / steps)
    model = replace(model, reading=Reading("text", "words", lower=bool(seed % 2)))
    folder = tmp_path_factory.mktemp("lm") / "model"
    count = language_artifact.save(folder, model)
    assert count == sum(map(len, files(folder).values()))
    found = load(folder)
    assert (found.vocabulary, found.reading, found.alpha) == (model.vocabulary, model.reading, model.alpha)
    for name in ("above", "word", "starts", "entry_word", "entry_above"):
        np.testing.assert_array_equal(getattr(found.trie, name), getattr(model.trie, name))
    np.testing.assert_array_equal(found.weights, model.weights.astype(np.float32))
    test = model.encode(sentences(seed + 1, 5))
    expected = replace(model, weights=found.weights, base=found.base).log_probabilities(test)
    np.testing.assert_array_equal(found.log_probabilities(found.encode(sentences(seed + 1, 5))), expected)
    np.testing.assert_allclose(model.log_probabilities(test), expected, atol=1e-5)


@pytest.mark.parametrize("words", [1, 250, 251, 252, 253, 254, 255, 256, 257, 65533, 65534, 65535, 65536])
def test_any_number_of_words_fits(words, tmp_path):
    """Codes of 254 words and the start need one byte, of 255 two: a context with all words after it, and all before."""
    text = encode([["w0", f"w{k}", "w0"] for k in range(words)])
    tree = ContextTree.build(text, 2)
    model = LanguageModel.of(tree, np.arange(1, tree.entries + 1) / tree.entries)
    language_artifact.save(tmp_path / "model", model)
    found = load(tmp_path / "model")
    np.testing.assert_array_equal(found.trie.entry_word, model.trie.entry_word)
    np.testing.assert_array_equal(found.trie.word, model.trie.word)


def test_saving_twice_writes_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        language_artifact.save(tmp_path / name, model_of())
    assert files(tmp_path / "first") == files(tmp_path / "second")


def test_dead_entries_cost_nothing_and_equal_ones_little(tmp_path):
    model = model_of(1, order=5, dead=0.0, count=300)
    sizes = {}
    for name, weights in (
        ("all", model.weights),
        ("equal", np.ones_like(model.weights)),
        ("half", np.where(np.arange(len(model.weights)) % 2, model.weights, 0)),
    ):
        language_artifact.save(tmp_path / name, pruned(model, weights))
        sizes[name] = len(files(tmp_path / name)["weights.safetensors"])
    assert sizes["equal"] < sizes["all"] - 3 * (model.trie.entries - model.trie.words)  # of 4 bytes each
    assert sizes["half"] < 0.75 * sizes["all"]


def pruned(model: LanguageModel, weights: np.ndarray) -> LanguageModel:
    text = encode(sentences(1, 300))
    return LanguageModel.of(ContextTree.build(text, 5), weights, model.alpha, model.base)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    for value in (math.nan, math.inf, 1e300):
        model = model_of()
        model.weights[3] = value
        with pytest.raises(UserError, match=r"model: the model has a weight that is NaN, infinite or too large"):
            language_artifact.save(tmp_path / "model", model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_weights_of_few_bits_are_read_to_the_bit_and_are_smaller(bits, tmp_path):
    model = model_of()
    whole = language_artifact.save(tmp_path / "whole", model)
    rounded = replace(model, weights=round_(torch.from_numpy(model.weights.copy()), bits).numpy())
    size = language_artifact.save(tmp_path / "model", rounded)
    assert size < whole
    found = load(tmp_path / "model")
    np.testing.assert_array_equal(found.weights, rounded.weights)
    np.testing.assert_array_equal(found.scores, replace(rounded, base=found.base).scores)  # that is no weight
    parts = artifact.parts(tmp_path / "model")
    assert sum(parts.values()) == size
    assert parts["values"] < artifact.parts(tmp_path / "whole")["values"]


@pytest.fixture
def saved(tmp_path) -> Path:
    language_artifact.save(tmp_path / "model", model_of())
    return tmp_path / "model"


def redescribe(folder: Path, **fields) -> None:
    """Change fields of the description; None takes one away."""
    known = json.loads((folder / "model.json").read_bytes()) | fields
    (folder / "model.json").write_text(json.dumps({name: v for name, v in known.items() if v is not None}))


def reweigh(folder: Path, weights: bytes) -> None:
    """Change the weights so that the checksum cannot tell."""
    (folder / "weights.safetensors").write_bytes(weights)
    redescribe(folder, sha256=hashlib.sha256(weights).hexdigest())


def retensor(folder: Path, name: str, change) -> None:
    """Change what one tensor holds."""
    tensors = safetensors.numpy.load((folder / "weights.safetensors").read_bytes())
    kind = {"weights": np.float32, "base": np.float32}.get(name, np.uint8)
    old = tensors.pop(name, None)
    raw = None if old is None else language_artifact.zlib.decompress(old.tobytes())
    array = (
        None
        if raw is None
        else np.frombuffer(raw, np.uint8).reshape(np.dtype(kind).itemsize, -1).T.copy().view(kind).ravel()
    )
    if (new := change(array)) is not None:
        tensors[name] = language_artifact._deflated(new)
    reweigh(folder, safetensors.numpy.save(tensors))


def put(index, value):
    def change(array):
        array[index] = value
        return array

    return change


WRONG_FIELDS = {
    "newer": ({"format": 3}, "written by a newer structsparse"),
    "older": ({"format": 1}, "written by an older structsparse"),
    "no kind": ({"kind": None}, "alpha is unknown"),
    "strange kind": ({"kind": "parser"}, "alpha is unknown"),
    "order as text": ({"order": "5"}, 'order is "5", expected a number'),
    "order zero": ({"order": 0}, "order is 0, expected a number"),
    "order too low": ({"order": 3}, "a context has 3 words, expected fewer than order"),
    "alpha zero": ({"alpha": 0}, "alpha is 0, expected a positive number"),
    "alpha not finite": ({"alpha": math.inf}, "alpha is Infinity, expected"),
    "alpha true": ({"alpha": True}, "alpha is true, expected"),
    "alpha huge": ({"alpha": 1e300}, "so large that probabilities are"),
    "nodes negative": ({"nodes": -1}, "nodes is -1, expected"),
    "nodes one more": ({"nodes": 10**6}, "nodes.children does not inflate to 1,000,000 numbers"),
    "entries one more": ({"entries": 10**6}, "nodes.entries add up to"),
    "entries astronomic": ({"entries": 10**30}, "entries is 1000"),
    "no words": ({"words": None}, "words is missing"),
    "words as text": ({"words": "w0 w1"}, 'words is "w0 w1", expected distinct words'),
    "word twice": ({"words": ["a", "a", UNKNOWN, END]}, "words is .*expected distinct words"),
    "word with space": ({"words": ["a b", UNKNOWN, END]}, "words is .*expected distinct words"),
    "word empty": ({"words": ["", UNKNOWN, END]}, "words is .*expected distinct words"),
    "half a character": ({"words": ["\ud800", UNKNOWN, END]}, "words is .*expected distinct words"),
    "no end": ({"words": ["a", UNKNOWN]}, "words is .*</s> the last"),
    "no unknown": ({"words": ["a", END]}, "words is .*<unk> among them"),
    "a start": ({"words": ["<s>", UNKNOWN, END]}, "words is .*no <s>"),
    "fewer words": ({"words": ["w0", "w1", UNKNOWN, END]}, "nodes.word holds|nodes.entries add up"),
    "reading as text": ({"reading": "lines"}, 'reading is "lines", expected an object'),
    "reading with a limit": ({"reading": {"limit": 3}}, "reading is .*expected an object with sentences"),
    "unknown sentences": (
        {"reading": {"sentences": "pages", "tokens": "spaces", "lower": False, "classes": False}},
        "sentences is 'pages', expected one of lines, text",
    ),
    "lower as number": (
        {"reading": {"sentences": "lines", "tokens": "spaces", "lower": 1, "classes": False}},
        "reading is .*expected an object",
    ),
    "unknown field": ({"extra": 1}, "extra is unknown"),
    "labels": ({"labels": ["A"]}, "labels is unknown"),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_a_wrong_description_is_named(case, saved):
    fields, message = WRONG_FIELDS[case]
    redescribe(saved, **fields)
    with pytest.raises(UserError, match=rf"(model\.json|weights\.safetensors): .*({message})"):
        load(saved)


WRONG_TENSORS = {
    "children of none": ("nodes.children", put(0, 0), "nodes.children add up to"),
    "children before their parent": (
        "nodes.children",
        lambda c: np.append(c[1:], c[0]),
        "a child of itself or of a longer one",
    ),
    "children too few": ("nodes.children", lambda c: c[:-1], "nodes.children does not inflate to"),
    "no children": ("nodes.children", lambda c: None, "tensor nodes.children is missing"),
    "words of contexts fall": ("nodes.word", put(1, 0), "nodes.word does not ascend"),
    "word beyond the start": ("nodes.word", put(2, 200), "nodes.word holds 200, expected 0 to"),
    "entries too many": ("nodes.entries", put(0, 200), "nodes.entries add up to"),
    "next words fall": ("entries.rank", put(1, 0), "entries.rank does not ascend"),
    "the start as next word": ("entries.rank", put(0, 22), "entries.rank holds 11, expected 0 to 10"),
    "all the same": ("entries.same", lambda s: np.full_like(s, 255), "weights does not inflate to"),
    "flags too few": ("entries.same", lambda s: s[:-1], "entries.same does not inflate to"),
    "NaN": ("weights", put(0, np.nan), "weights are NaN, infinite"),
    "infinite": ("weights", put(-1, np.inf), "weights are NaN, infinite"),
    "weights too many": ("weights", lambda w: np.append(w, w), "weights does not inflate to"),
    "NaN in the base": ("base", put(0, np.nan), "weights are NaN, infinite"),
    "base too short": ("base", lambda b: b[:-1], "base does not inflate to 11 numbers"),
    "one too many": ("more", lambda _: np.zeros(2, np.float32), "tensor more has no place"),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_wrong_tensors_are_named(case, saved):
    assert len(json.loads((saved / "model.json").read_bytes())["words"]) == 11
    name, change, message = WRONG_TENSORS[case]
    retensor(saved, name, change)
    with pytest.raises(UserError, match=rf"weights\.safetensors: .*{message}"):
        load(saved)


def test_what_is_not_deflated_is_refused(saved):
    whole = safetensors.numpy.load((saved / "weights.safetensors").read_bytes())
    for change, message in (
        ({"weights": np.zeros(5, np.uint8)}, "tensor weights cannot be inflated"),
        ({"weights": np.zeros(5, np.float32)}, "tensor weights is float32"),
        ({"weights": whole["weights"][:-3]}, "tensor weights does not inflate"),
        ({"weights": np.append(whole["weights"], whole["weights"])}, "tensor weights does not inflate"),
    ):
        reweigh(saved, safetensors.numpy.save({**whole, **change}))
        with pytest.raises(UserError, match=message):
            load(saved)


def test_a_bomb_is_not_inflated(saved):
    whole = safetensors.numpy.load((saved / "weights.safetensors").read_bytes())
    bomb = np.frombuffer(language_artifact.zlib.compress(bytes(1 << 27)), np.uint8)
    reweigh(saved, safetensors.numpy.save({**whole, "entries.rank": bomb}))
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(UserError, match=r"tensor entries\.rank does not inflate"):
        load(saved)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_files_changed_anywhere_load_or_are_refused_in_one_line(saved):
    """Bytes put in, taken away and changed, checksum and all: never another exception, never a broken model."""
    draw = random.Random(0)
    originals = files(saved)
    refused = 0
    for _ in range(400):
        for name, content in originals.items():
            (saved / name).write_bytes(content)
        name = draw.choice([*originals])
        changed = bytearray(originals[name])
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(len(changed))
            kind = draw.randrange(3)
            if kind == 0:
                changed[place] = draw.randrange(256)
            elif kind == 1:
                del changed[place : place + draw.randrange(1, 30)]
            else:
                changed[place:place] = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 5)))
        if name == "weights.safetensors":
            reweigh(saved, bytes(changed))
        else:
            (saved / name).write_bytes(bytes(changed))
        try:
            found = load(saved)
        except UserError as error:
            refused += 1
            assert str(error).startswith(str(saved))
            assert "\n" not in str(error)
        else:
            assert found.distribution("w0 w1").sum() == pytest.approx(1, abs=1e-6)
    assert refused > 200


def test_a_flipped_bit_is_found_anywhere(saved):
    whole = (saved / "weights.safetensors").read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        (saved / "weights.safetensors").write_bytes(flipped)
        with pytest.raises(UserError, match=r"weights\.safetensors: damaged"):
            load(saved)


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_missing_file_is_named(name, saved):
    (saved / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: cannot be read \(No such file"):
        load(saved)


# --- exports


def read_arpa(text: str) -> tuple[dict[int, int], dict[tuple[str, ...], tuple[float, float]]]:
    """What the head says, and (probability, back-off weight) of every n-gram, to base 10."""
    head, grams, length = {}, {}, 0
    for line in text.splitlines():
        if line.startswith("ngram "):
            key, _, count = line[6:].partition("=")
            head[int(key)] = int(count)
        elif line.endswith("-grams:"):
            length = int(line[1:].split("-")[0])
        elif line and not line.startswith("\\"):
            chance, words, *backoff = line.split("\t")
            words = tuple(words.split(" "))
            assert len(words) == length
            assert words not in grams
            grams[words] = (float(chance), float(backoff[0]) if backoff else 0.0)
    assert text.rstrip().endswith("\\end\\")
    return head, grams


def by_backing_off(grams: dict, before: tuple[str, ...], word: str) -> float:
    if (*before, word) in grams:
        return grams[(*before, word)][0]
    return grams.get(before, (0.0, 0.0))[1] + by_backing_off(grams, before[1:], word)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("dead", [0.0, 0.7])
def test_an_arpa_reader_finds_the_same_probabilities(order, signs, dead):
    model = model_of(4, order, signs=signs, dead=dead)
    head, grams = read_arpa("".join(export.arpa(model)))
    assert head == {k: sum(len(words) == k for words in grams) for k in head}
    for sentence in [*sentences(5, 30, 12), *sentences(4, 10)]:
        known = [word if word in model.vocabulary.codes else UNKNOWN for word in sentence]
        before = (START, *known)
        found = [
            by_backing_off(grams, before[: k + 1][-order + 1 :] if order > 1 else (), word) * math.log(10)
            for k, word in enumerate([*known, END])
        ]
        np.testing.assert_allclose(found, model.log_probabilities(model.encode([sentence])), atol=1e-6)


def test_the_arpa_file_is_as_other_readers_want_it():
    model = model_of(4, 5, dead=0.8)
    _, grams = read_arpa("".join(export.arpa(model)))
    assert {(word,) for word in (*model.vocabulary.words, START)} == {words for words in grams if len(words) == 1}
    assert all(words[:-1] in grams for words in grams if len(words) > 1)  # the context of each is there
    assert {words for words in grams if START in words[1:] or END in words[:-1]} == set()
    assert grams[START,][0] == -99
    assert all(chance <= 0 for chance, _ in grams.values())
    contexts = {tuple(context.words) for context in model.contexts() if context.words}
    assert contexts <= {*grams}


def test_kenlm_finds_the_same_probabilities(tmp_path):
    kenlm = pytest.importorskip("kenlm")
    model = model_of(4, 5, dead=0.6)
    (tmp_path / "model.arpa").write_text("".join(export.arpa(model)))
    other = kenlm.Model(str(tmp_path / "model.arpa"))
    for sentence in sentences(5, 30, 12):
        found = [chance for chance, _, _ in other.full_scores(" ".join(sentence))]
        np.testing.assert_allclose(
            np.array(found) * math.log(10), model.log_probabilities(model.encode([sentence])), atol=1e-5
        )


@pytest.mark.parametrize("counted", [True, False])
def test_the_table_has_every_living_weight(counted, tmp_path):
    model = model_of(4, 4)
    counts = {}
    for sentence in sentences(4):
        before = [START, *sentence]
        for k, word in enumerate([*sentence, END], start=1):
            for length in range(min(k, 3) + 1):
                key = " ".join(before[k - length : k]), word
                counts[key] = counts.get(key, 0) + 1
    dense = Dense(model)
    if not counted:
        language_artifact.save(tmp_path / "model", model)
        model = load(tmp_path / "model")
    header, *rows = "".join(export.tsv(model)).splitlines()
    assert header.split("\t") == ["context", "word", "weight", "probability", *(["count"] if counted else [])]
    living = {(" ".join(context), word) for (context, word), weight in dense.weights.items() if weight}
    assert {tuple(row.split("\t")[:2]) for row in rows} == living
    assert len(rows) == len(living)
    for row in rows:
        context, word, weight, chance, *count = row.split("\t")
        own = dense.weights[tuple(context.split()), word] + (0.0 if context else dense.base[word])
        assert float(weight) == pytest.approx(own, rel=1e-5)
        assert float(chance) == pytest.approx(dense.chances(context.split())[word], rel=1e-4)
        assert count == ([str(counts.get((context, word), 0))] if counted else [])


def test_exports_do_not_depend_on_how_many_lines_are_made_at_once(monkeypatch):
    model = model_of(4)
    whole = ["".join(write(model)) for write in export.FORMATS.values()]
    monkeypatch.setattr(export, "_ROWS", 3)
    assert ["".join(write(model)) for write in export.FORMATS.values()] == whole


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set")
@pytest.mark.parametrize("signs", SIGNS)
def test_probabilities_after_contexts_of_real_text_sum_to_1(signs, tmp_path):
    """The contexts of 70,000 words, and those of other text that are longer than the known ones."""
    paths = locate("ptb")
    coded = read_coded(paths["dev"], Reading())
    tree = ContextTree.build(coded.text(coded.vocabulary()), 6)
    generator = np.random.default_rng(0)
    table = generator.uniform(*SIGNS[signs], tree.entries) * (generator.random(tree.entries) < 0.5)
    language_artifact.save(tmp_path / "model", LanguageModel.of(tree, table, 1.5))
    model = load(tmp_path / "model")
    sums = [np.exp(model.trie.after(node, model.scores) - z).sum() for node, z in enumerate(model.log_z[:200])]
    for node in generator.choice(model.trie.nodes, 300, replace=False):
        sums.append(np.exp(model.trie.after(node, model.scores) - model.log_z[node]).sum())
    lines = paths["test"].read_text().splitlines()
    for line in generator.choice(lines, 100):
        sums.append(model.distribution(["<s>", *line.split()[: generator.integers(12)]]).sum())
    np.testing.assert_allclose(sums, 1, rtol=0, atol=1e-9)
