"""Artifacts of language models: loaded as saved, small, and refused in one line when damaged."""

import hashlib
import json
import math
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse import load
from structsparse.artifacts import folder as model_files
from structsparse.artifacts.quantization import quantize_
from structsparse.base.errors import UserError
from structsparse.corpora.text import encode
from structsparse.corpora.text_reading import END, UNKNOWN, TextReading
from structsparse.tasks.lm import artifact as lm_artifact
from structsparse.tasks.lm.artifact import save
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.predictor import LanguageModel
from tests.support.language_models import model_of, sentences


def files(folder: Path) -> dict[str, bytes]:
    """The content of every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    order=st.integers(1, 6),
    base=st.booleans(),
    dead=st.sampled_from([0.0, 0.5, 1.0]),
    steps=st.sampled_from([0, 2]),  # weights are rounded, so that many equal those above
)
def test_a_loaded_model_equals_the_saved_one(seed, order, base, dead, steps, tmp_path_factory):
    model = model_of(seed, order, 0.7, base, "signed", dead)
    if steps:
        model = replace(model, weights=np.round(model.weights * steps) / steps)
    model = replace(model, reading=TextReading("text", "words", lower=bool(seed % 2)))
    folder = tmp_path_factory.mktemp("lm") / "model"
    count = save(folder, model)
    assert count == sum(map(len, files(folder).values()))
    loaded = load(folder)
    assert (loaded.vocabulary, loaded.reading, loaded.alpha) == (model.vocabulary, model.reading, model.alpha)
    for name in ("above", "word", "starts", "entry_word", "entry_above"):
        np.testing.assert_array_equal(getattr(loaded.trie, name), getattr(model.trie, name))
    np.testing.assert_array_equal(loaded.weights, model.weights.astype(np.float32))
    test = model.encode(sentences(seed + 1, 5))
    expected = replace(model, weights=loaded.weights, base=loaded.base).log_probabilities(test)
    np.testing.assert_array_equal(loaded.log_probabilities(loaded.encode(sentences(seed + 1, 5))), expected)
    np.testing.assert_allclose(model.log_probabilities(test), expected, atol=1e-5)


@pytest.mark.parametrize("words", [1, 250, 251, 252, 253, 254, 255, 256, 257, 65533, 65534, 65535, 65536])
def test_any_number_of_words_fits(words, tmp_path):
    """254 words and the start need one byte, 255 two. One context has all words after it; all words are contexts."""
    text = encode([["w0", f"w{k}", "w0"] for k in range(words)])
    tree = ContextTree.build(text, 2)
    model = LanguageModel.of(tree, np.arange(1, tree.entries + 1) / tree.entries)
    save(tmp_path / "model", model)
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.trie.entry_word, model.trie.entry_word)
    np.testing.assert_array_equal(loaded.trie.word, model.trie.word)


def test_saving_twice_writes_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        save(tmp_path / name, model_of())
    assert files(tmp_path / "first") == files(tmp_path / "second")


def test_dead_entries_take_no_bytes_and_equal_ones_few(tmp_path):
    model = model_of(1, order=5, dead=0.0, count=300)
    sizes = {}
    for name, weights in (
        ("all", model.weights),
        ("equal", np.ones_like(model.weights)),
        ("half", np.where(np.arange(len(model.weights)) % 2, model.weights, 0)),
    ):
        save(tmp_path / name, pruned(model, weights))
        sizes[name] = len(files(tmp_path / name)["weights.safetensors"])
    assert sizes["equal"] < sizes["all"] - 3 * (model.trie.entries - model.trie.words)  # of 4 bytes each
    assert sizes["half"] < 0.75 * sizes["all"]


def pruned(model: LanguageModel, weights: np.ndarray) -> LanguageModel:
    """The model with other weights."""
    text = encode(sentences(1, 300))
    return LanguageModel.of(ContextTree.build(text, 5), weights, model.alpha, model.base)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    for value in (math.nan, math.inf, 1e300):
        model = model_of()
        model.weights[3] = value
        with pytest.raises(UserError, match=r"model: the model has a weight that is NaN, infinite or too large"):
            save(tmp_path / "model", model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_quantized_weights_are_exact_and_smaller(bits, tmp_path):
    model = model_of()
    full_size = save(tmp_path / "full", model)
    rounded = replace(model, weights=quantize_(torch.from_numpy(model.weights.copy()), bits).numpy())
    size = save(tmp_path / "model", rounded)
    assert size < full_size
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.weights, rounded.weights)
    np.testing.assert_array_equal(loaded.scores, replace(rounded, base=loaded.base).scores)  # base is not quantized
    parts = model_files.part_sizes(tmp_path / "model")
    assert sum(parts.values()) == size
    assert parts["values"] < model_files.part_sizes(tmp_path / "full")["values"]


@pytest.fixture
def saved(tmp_path) -> Path:
    """The folder of a small language model."""
    save(tmp_path / "model", model_of())
    return tmp_path / "model"


def change_fields(folder: Path, **fields) -> None:
    """Change fields of model.json; None removes one."""
    description = json.loads((folder / "model.json").read_bytes()) | fields
    (folder / "model.json").write_text(json.dumps({name: v for name, v in description.items() if v is not None}))


def change_weights(folder: Path, weights: bytes) -> None:
    """Change weights.safetensors and its checksum."""
    (folder / "weights.safetensors").write_bytes(weights)
    change_fields(folder, sha256=hashlib.sha256(weights).hexdigest())


def change_tensor(folder: Path, name: str, change) -> None:
    """Change the content of one tensor."""
    tensors = safetensors.numpy.load((folder / "weights.safetensors").read_bytes())
    kind = {"weights": np.float32, "base": np.float32}.get(name, np.uint8)
    old = tensors.pop(name, None)
    raw = None if old is None else lm_artifact.zlib.decompress(old.tobytes())
    array = (
        None
        if raw is None
        else np.frombuffer(raw, np.uint8).reshape(np.dtype(kind).itemsize, -1).T.copy().view(kind).ravel()
    )
    if (new := change(array)) is not None:
        tensors[name] = lm_artifact._deflated(new)
    change_weights(folder, safetensors.numpy.save(tensors))


def put(index, value):
    """A change that sets one element."""

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
def test_wrong_fields_are_named(case, saved):
    fields, message = WRONG_FIELDS[case]
    change_fields(saved, **fields)
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
    change_tensor(saved, name, change)
    with pytest.raises(UserError, match=rf"weights\.safetensors: .*{message}"):
        load(saved)


def test_damaged_deflated_bytes_are_refused(saved):
    tensors = safetensors.numpy.load((saved / "weights.safetensors").read_bytes())
    for change, message in (
        ({"weights": np.zeros(5, np.uint8)}, "tensor weights cannot be inflated"),
        ({"weights": np.zeros(5, np.float32)}, "tensor weights is float32"),
        ({"weights": tensors["weights"][:-3]}, "tensor weights does not inflate"),
        ({"weights": np.append(tensors["weights"], tensors["weights"])}, "tensor weights does not inflate"),
    ):
        change_weights(saved, safetensors.numpy.save({**tensors, **change}))
        with pytest.raises(UserError, match=message):
            load(saved)


def test_a_decompression_bomb_is_not_inflated(saved):
    tensors = safetensors.numpy.load((saved / "weights.safetensors").read_bytes())
    bomb = np.frombuffer(lm_artifact.zlib.compress(bytes(1 << 27)), np.uint8)
    change_weights(saved, safetensors.numpy.save({**tensors, "entries.rank": bomb}))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"tensor entries\.rank does not inflate"):
        load(saved)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_randomly_changed_files_load_or_are_refused_in_one_line(saved):
    """Bytes are inserted, removed and changed, with the checksum: no other exception, no broken model."""
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
            change_weights(saved, bytes(changed))
        else:
            (saved / name).write_bytes(bytes(changed))
        try:
            loaded = load(saved)
        except UserError as error:
            refused += 1
            assert str(error).startswith(str(saved))
            assert "\n" not in str(error)
        else:
            assert loaded.distribution("w0 w1").sum() == pytest.approx(1, abs=1e-6)
    assert refused > 200


def test_a_flipped_bit_is_detected(saved):
    weights = (saved / "weights.safetensors").read_bytes()
    for place in range(0, len(weights), len(weights) // 40):
        flipped = bytearray(weights)
        flipped[place] ^= 1
        (saved / "weights.safetensors").write_bytes(flipped)
        with pytest.raises(UserError, match=r"weights\.safetensors: damaged"):
            load(saved)


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_missing_file_is_named(name, saved):
    (saved / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: cannot be read \(No such file"):
        load(saved)
