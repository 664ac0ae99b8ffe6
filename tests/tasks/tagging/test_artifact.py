"""The artifact: predicts as the tagger it was made from, holds what lives, and is refused when it is damaged."""

import contextlib
import hashlib
import json
import os
import pickle
import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

from structsparse import load
from structsparse.artifacts.folder import part_sizes
from structsparse.artifacts.quantization import quantize_
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences, write_columns
from structsparse.corpora.known.tagging import planted
from structsparse.corpora.splits import SentenceSplits
from structsparse.tasks.tagging import artifact, predictor
from structsparse.tasks.tagging.data import TaggingData, prepare
from structsparse.tasks.tagging.model import DenseScorer, RecurrentScorer, SparseScorer, SumScorer, Tagger
from structsparse.tasks.tagging.task import Tagging

TEMPLATES = ["1-2-grams of word[-1..1]", "suffix3[0]", "prefix4[0] & pos[-1]", "pos[-1..0]"]
SCORERS = {
    "sparse": SparseScorer,
    "dense": DenseScorer,
    "recurrent": partial(RecurrentScorer, embedding=5, hidden=7),
    "sum": partial(SumScorer, parts=[SparseScorer, DenseScorer]),
    "nested": partial(SumScorer, parts=[partial(SumScorer, parts=[SparseScorer, RecurrentScorer]), SparseScorer]),
}


def with_numbers(sentences: Sentences) -> Sentences:
    """Columns of numbers, which planted corpora lack."""
    words = sentences.columns["word"].strings()
    size = Column.from_strings([str(len(word) % 5 - 2) for word in words])
    share = Column.from_strings([f"{sum(c in 'aei' for c in word) / len(word) - 0.3:.3f}" for word in words])
    return sentences.with_column("size", size).with_column("share", share)


def planted_data(**options) -> TaggingData:
    splits = planted(3, 120, 20, 90)
    parts = {name: with_numbers(part) for name, part in splits.parts.items()}
    options = {"dense": ["size", "share"], "codes": ["lower", "pos"], **options}
    return prepare(replace(splits, **parts), TEMPLATES, **options)


@pytest.fixture(scope="module")
def data() -> TaggingData:
    return planted_data()


def tagger_of(data: TaggingData, build=SparseScorer, dead: float = 0.9, zeros: float = 0.5, seed: int = 0) -> Tagger:
    """Random weights; this share of the rows of every table is dead, and of the living weights this share zero."""
    draw = torch.Generator().manual_seed(seed)
    tagger = Tagger(build(data.sizes), len(data.labels))
    with torch.no_grad():
        for name, weights in tagger.named_parameters():
            weights.copy_(3 * torch.randn(weights.shape, generator=draw))
            if name.endswith("table"):
                weights *= torch.rand(len(weights), 1, generator=draw) >= dead
                weights *= torch.rand(weights.shape, generator=draw) >= zeros
    return tagger


def predicted(tagger: Tagger, data: TaggingData, size: int | None = None) -> list[str]:
    """What the training model says of the test sentences."""
    module = Tagging(tagger, nn.Identity(), None, None, ())
    offsets = data.splits.test.offsets
    codes = np.full(offsets[-1], -1)
    for batch in data.batches("test", size):
        with torch.no_grad():
            labels = module.predict_step(batch).numpy()
        tokens = [np.arange(offsets[s], offsets[s + 1]) for s in batch.sentences.tolist()]
        codes[np.concatenate(tokens)] = labels
    return [data.labels[code] for code in codes]


def described(folder: Path) -> dict:
    return json.loads((folder / "model.json").read_bytes())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the same predictions


@pytest.mark.parametrize("scorer", SCORERS)
def test_predictions_equal_those_of_the_training_model(scorer, data, tmp_path):
    tagger = tagger_of(data, SCORERS[scorer])
    artifact.save(tmp_path / "model", tagger, data)
    tags = load(str(tmp_path / "model")).tag(data.splits.test).strings()
    assert tags == predicted(tagger, data)
    assert len(set(tags)) > 1  # or the comparison would say little


@pytest.mark.parametrize("places", [1, 40, 300, 10**9])
def test_predictions_do_not_depend_on_the_batches(places, data, tmp_path, monkeypatch):
    tagger = tagger_of(data)
    artifact.save(tmp_path / "model", tagger, data)
    monkeypatch.setattr(predictor, "BATCH", places)
    assert load(tmp_path / "model").tag(data.splits.test).strings() == predicted(tagger, data, size=7)


def test_a_model_without_living_features_still_predicts(data, tmp_path):
    tagger = tagger_of(data, dead=1.0)
    artifact.save(tmp_path / "model", tagger, data)
    model = load(tmp_path / "model")
    assert model.columns == ()
    assert model.tag(data.splits.test).strings() == predicted(tagger, data)


def test_forbidden_transitions_are_kept(data, tmp_path):
    tagger = tagger_of(data)
    with torch.no_grad():
        tagger.transitions[0, 1:] = -torch.inf
    artifact.save(tmp_path / "model", tagger, data)
    tags = load(tmp_path / "model").tag(data.splits.test).strings()
    assert tags == predicted(tagger, data)


@pytest.mark.parametrize("labels", [1, 2, 256, 257])
def test_any_number_of_labels_fits(labels, tmp_path):
    """Counts and codes of 256 labels need more than one byte, and one byte, and so on."""
    offsets = np.arange(labels + 1)
    words, tags = (Column.from_strings([f"{kind}{k}" for k in range(labels)]) for kind in ("word", "tag"))
    corpus = Sentences({"word": words, "tag": tags}, offsets, "memory")
    data = prepare(SentenceSplits("memory", corpus, corpus, corpus), ["word[0]", "word[-1..0]"], scheme=None)
    tagger = tagger_of(data, dead=0.2, zeros=0.8)
    with torch.no_grad():
        tagger.scorer.table[0] = torch.arange(1, labels + 1)
    artifact.save(tmp_path / "model", tagger, data)
    assert load(tmp_path / "model").tag(corpus).strings() == predicted(tagger, data)


def test_no_sentences_have_no_tags(data, tmp_path):
    artifact.save(tmp_path / "model", tagger_of(data), data)
    assert load(tmp_path / "model").tag(data.splits.test.select([])).strings() == []


def test_loading_draws_nothing_at_random(data, tmp_path):
    artifact.save(tmp_path / "model", tagger_of(data, SCORERS["recurrent"]), data)
    before = torch.random.get_rng_state()
    load(tmp_path / "model")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_fresh_process_predicts_without_lightning_or_hydra(data, tmp_path):
    tagger = tagger_of(data, SCORERS["nested"])
    artifact.save(tmp_path / "model", tagger, data)
    test = data.splits.test
    with (tmp_path / "test.txt").open("wb") as file:
        write_columns(file, test)
    program = f"""
import sys
from pathlib import Path
from structsparse import load
from structsparse.corpora.columns import read_columns
sentences = read_columns("test.txt", {list(test.columns)!r})
tags = load(Path("model")).tag(sentences).strings()
assert not {{"lightning", "hydra", "omegaconf"}} & set(sys.modules), "heavy"
print(*tags, sep="\\n")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.stderr == ""
    assert run.stdout.split() == predicted(tagger, data)


# --- few bits


@pytest.mark.parametrize("bits", [2, 6, 10])
@pytest.mark.parametrize("scorer", SCORERS)
def test_the_rounded_model_is_read_to_the_bit(scorer, bits, data, tmp_path):
    tagger = tagger_of(data, SCORERS[scorer])
    for weights in tagger.parameters():
        quantize_(weights, bits)
    kept = [weights.detach().clone() for name, weights in tagger.named_parameters() if not name.endswith("table")]
    size = artifact.save(tmp_path / "model", tagger, data)
    assert size <= artifact.save(tmp_path / "whole", tagger_of(data, SCORERS[scorer]), data)
    model = load(tmp_path / "model")
    assert model.tag(data.splits.test).strings() == predicted(tagger, data)
    again = [weights for name, weights in model.tagger.named_parameters() if not name.endswith("table")]
    assert all(torch.equal(*pair) for pair in zip(kept, again, strict=True))
    for name, weights in model.tagger.named_parameters():
        if name.endswith("table"):
            assert len(weights.unique()) <= 2**bits - 1
            assert (weights != 0).sum() == (dict(tagger.named_parameters())[name] != 0).sum()


@pytest.mark.parametrize("scorer", SCORERS)
def test_short_keys_are_found_as_the_artifact_finds_them(scorer, data, tmp_path):
    """Also those that are mistaken."""
    tagger = tagger_of(data, SCORERS[scorer], dead=0.6)
    short = data.shortened(4, *artifact.living(tagger, len(data.index)))
    artifact.save(tmp_path / "model", tagger, short)
    model = load(tmp_path / "model")
    assert model.tag(data.splits.test).strings() == predicted(tagger, short)
    assert len(model.index) == artifact.living(tagger, len(data.index))[0].sum()
    if scorer == "sparse":
        found, known = (arrays["test"].bags.ids for arrays in (short.arrays, data.arrays))
        living = (tagger.scorer.table != 0).any(dim=1).numpy()
        assert 0 < len(found) - living[known].sum() < 0.2 * len(known)  # those that are mistaken


# --- what is in it


def test_the_bytes_returned_are_those_of_two_files(data, tmp_path):
    count = artifact.save(tmp_path / "model", tagger_of(data), data)
    assert sorted(files(tmp_path / "model")) == ["model.json", "weights.safetensors"]
    assert count == sum(len(content) for content in files(tmp_path / "model").values())


def test_dead_rows_cost_nothing(data, tmp_path):
    """The same living rows among few dead ones and among many."""
    tagger = tagger_of(data, dead=0.8)
    alive = (tagger.scorer.table != 0).any(dim=1)
    kept = data.keep(alive.numpy())
    small = Tagger(SparseScorer(kept.sizes), len(kept.labels))
    small.load_state_dict(tagger.state_dict() | {"scorer.table": tagger.scorer.table.detach()[alive]})
    artifact.save(tmp_path / "all", tagger, data)
    artifact.save(tmp_path / "kept", small, kept)
    assert files(tmp_path / "all") == files(tmp_path / "kept")
    assert int(alive.sum()) == sum(count for count, _ in described(tmp_path / "all")["templates"].values())


@pytest.mark.parametrize("zeros", [0.0, 0.2, 0.5, 0.95])
def test_a_table_is_no_larger_than_in_plain_ways(zeros, data, tmp_path):
    tagger = tagger_of(data, dead=0.5, zeros=zeros)
    artifact.save(tmp_path / "model", tagger, data)
    tensors = safetensors.numpy.load(files(tmp_path / "model")["weights.safetensors"])
    stored = sum(array.nbytes for name, array in tensors.items() if name.startswith("scorer.table"))
    rows = int((tagger.scorer.table != 0).any(dim=1).sum())
    entries = int((tagger.scorer.table != 0).sum())
    assert stored <= min(4 * rows * len(data.labels), rows + 5 * entries)  # bytes; a count, a label and a float32
    assert len(tensors["keys"]) < 5 * rows  # of 8 before they are shortened


def test_the_parts_are_all_bytes(data, tmp_path):
    size = artifact.save(tmp_path / "model", tagger_of(data), data)
    parts = part_sizes(tmp_path / "model")
    assert list(parts) == ["index", "labels", "values", "description"]
    assert sum(parts.values()) == size
    tensors = safetensors.numpy.load(files(tmp_path / "model")["weights.safetensors"])
    assert parts["index"] == len(tensors["keys"])
    assert parts["labels"] == len(tensors["scorer.table.counts"]) + len(tensors["scorer.table.labels"])
    assert parts["description"] > len(files(tmp_path / "model")["model.json"])


def test_dead_templates_are_gone_and_so_are_columns_only_they_need(data, tmp_path):
    tagger = tagger_of(data)
    suffixes = data.index.names.index("suffix3[0]")
    begin, end = data.index.offsets[suffixes : suffixes + 2]
    with torch.no_grad():
        tagger.scorer.table[:begin] = 0
        tagger.scorer.table[end:] = 0
    artifact.save(tmp_path / "model", tagger, data)
    model = load(tmp_path / "model")
    assert (model.index.names, model.columns) == (["suffix3[0]"], ("word",))
    words = Sentences({"word": data.splits.test.columns["word"]}, data.splits.test.offsets, "memory")
    assert model.tag(words).strings() == predicted(tagger, data)


@pytest.mark.parametrize(
    ("scorer", "columns"), [("dense", ("size", "share")), ("recurrent", ("word", "pos")), ("sparse", ("word", "pos"))]
)
def test_a_model_asks_for_the_columns_it_needs(scorer, columns, data, tmp_path):
    artifact.save(tmp_path / "model", tagger_of(data, SCORERS[scorer]), data)
    model = load(tmp_path / "model")
    assert model.columns == columns
    for name in columns:
        lacking = {key: column for key, column in data.splits.test.columns.items() if key != name}
        with pytest.raises(UserError, match=f"planted tagging.*no column '{name}'"):
            model.tag(replace(data.splits.test, columns=lacking))


def test_a_number_that_is_none_is_an_error(data, tmp_path):
    artifact.save(tmp_path / "model", tagger_of(data, DenseScorer), data)
    strange = Column.from_strings(["many"] * data.splits.test.tokens)
    with pytest.raises(UserError, match=r"column 'size' .*is not numeric.*'many'"):
        load(tmp_path / "model").tag(data.splits.test.with_column("size", strange))


def test_saving_twice_writes_the_same_bytes(data, tmp_path):
    for name in ("first", "second"):
        artifact.save(tmp_path / name, tagger_of(data, SCORERS["nested"]), data)
    assert files(tmp_path / "first") == files(tmp_path / "second")


class Subclassed(SparseScorer):
    pass


@pytest.mark.parametrize("build", [Subclassed, partial(SumScorer, parts=[SparseScorer, Subclassed])])
def test_other_scorers_are_refused_and_nothing_is_written(build, data, tmp_path):
    with pytest.raises(
        UserError, match=r"test_artifact.Subclassed.> cannot be put into an artifact.*SparseScorer, Dense"
    ):
        artifact.save(tmp_path / "model", tagger_of(data, build), data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_not_saved(value, data, tmp_path):
    tagger = tagger_of(data)
    with torch.no_grad():
        tagger.scorer.table[5, 1] = value
    with pytest.raises(UserError, match=r"model: scorer\.table holds a weight that is NaN or infinite"):
        artifact.save(tmp_path / "model", tagger, data)
    assert list(tmp_path.iterdir()) == []


# --- damage


@pytest.fixture
def model(data, tmp_path) -> Path:
    artifact.save(tmp_path / "model", tagger_of(data), data)
    return tmp_path / "model"


def redescribe(folder: Path, **fields) -> None:
    """Change fields of the description; None takes one away."""
    path = folder / "model.json"
    known = json.loads(path.read_bytes()) | fields
    path.write_text(json.dumps({name: value for name, value in known.items() if value is not None}))


def reweigh(folder: Path, weights: bytes) -> None:
    """Change the weights so that the checksum cannot tell."""
    (folder / "weights.safetensors").write_bytes(weights)
    redescribe(folder, sha256=hashlib.sha256(weights).hexdigest())


def retensor(folder: Path, **changes) -> None:
    """Change tensors (dots written as _); None takes one away."""
    tensors = safetensors.numpy.load((folder / "weights.safetensors").read_bytes())
    for name, change in changes.items():
        name = {"table_" + part: f"scorer.table.{part}" for part in ("counts", "labels", "values")}.get(name, name)
        old = tensors.pop(name, None)
        if change is not None:
            tensors[name] = np.ascontiguousarray(change(None if old is None else old.copy()))
    reweigh(folder, safetensors.numpy.save(tensors))


def put(index, value):
    def change(array):
        array[index] = value
        return array

    return change


def cut(stored):
    return stored[: len(stored) // 3]


def longer(stored):
    return np.r_[stored, np.full(20, 7, np.uint8)]


WRONG_TENSORS = {  # what is wrong within tables and keys: tests/test_packing.py
    "keys too few": ({"keys": cut}, "tensor keys has .* bytes, expected"),
    "keys too many": ({"keys": longer}, "tensor keys has .* more than"),
    "keys signed": ({"keys": lambda keys: keys.astype(np.int64)}, "tensor keys is int64"),
    "no keys": ({"keys": None}, "tensor keys is missing"),
    "labels too many": ({"table_labels": longer}, "scorer.table.labels has .* more than"),
    "values too many": ({"table_values": lambda values: np.r_[values, values]}, "tensor scorer.table.values is"),
    "counts as floats": ({"table_counts": lambda counts: counts.astype(np.float32)}, "counts is float32"),
    "no counts": ({"table_counts": None}, "tensor scorer.table.counts is missing"),
    "NaN in the table": ({"table_values": put(3, np.nan)}, "scorer.table holds a weight that is NaN"),
    "NaN in transitions": ({"transitions": put((0, 0), np.nan)}, "transitions holds a weight that is NaN"),
    "infinite start": ({"start": put(0, np.inf)}, "start holds a weight that is NaN or infinite"),
    "end in float64": ({"end": lambda end: end.astype(np.float64)}, "tensor end is float64"),
    "transitions flat": ({"transitions": np.ravel}, "tensor transitions is float32"),
    "no start": ({"start": None}, "tensor start is missing"),
    "one too many": ({"more": lambda _: np.zeros(2, np.float32)}, "tensor more has no place"),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_wrong_tensors_are_named(case, model):
    changes, message = WRONG_TENSORS[case]
    retensor(model, **changes)
    with pytest.raises(UserError, match=rf"weights\.safetensors: .*{message}"):
        load(model)


WRONG_FIELDS = {
    "newer": ({"format": 3}, r"written by a newer structsparse \(format 3\); this one reads format 2"),
    "older": ({"format": 1}, r"written by an older structsparse \(format 1\); this one reads format 2: train it again"),
    "format as text": ({"format": "1"}, 'format is "1", expected'),
    "format zero": ({"format": 0}, "format is 0, expected"),
    "no labels field": ({"labels": None}, "labels is missing"),
    "empty labels": ({"labels": []}, r"labels is \[\], expected"),
    "labels as numbers": ({"labels": [1, 2]}, r"labels is \[1, 2\], expected"),
    "one label more": ({"labels": ["A", "B", "C", "D", "E", "F", "G", "H"]}, "tensor transitions is|table"),
    "unknown field": ({"extra": 1}, "extra is unknown"),
    "unknown scheme": ({"scheme": "bilou"}, 'scheme is "bilou", expected null or one of iob2'),
    "tag elsewhere": ({"tag": "label"}, "tag is 'label', expected one of the columns"),
    "columns as a string": ({"columns": "word"}, 'columns is "word", expected'),
    "column gone": ({"columns": ["word", "tag"]}, "attribute 'pos' is neither a column"),
    "no word": ({"columns": ["pos", "tag"]}, r"attribute '\w+' is neither a column"),
    "bad template": ({"templates": {"word[": [3, 40]}}, r"'word\[' is not understood"),
    "two templates": ({"templates": {"1-grams of word[0..1]": [3, 40]}}, "not the name of one template"),
    "negative rows": ({"templates": {"word[0]": [-3, 40]}}, "templates is .*expected counts"),
    "too many rows": ({"templates": {"word[0]": [10**30, 40]}}, "templates is .*expected counts"),
    "more rows than bytes": ({"templates": {"word[0]": [2**30, 64]}}, "tensor keys has .* bytes, expected"),
    "keys too short": ({"templates": {"word[0]": [300, 8]}}, "templates is .*bits of their keys"),
    "keys too long": ({"templates": {"word[0]": [3, 65]}}, "templates is .*bits of their keys"),
    "count alone": ({"templates": {"word[0]": 3}}, "templates is .*expected counts"),
    "codes as a list": ({"codes": ["pos"]}, r"codes is \[\"pos\"\], expected"),
    "unknown scorer": ({"scorer": {"class": "os.system", "command": "true"}}, "scorer class 'os.system' is unknown"),
    "no scorer class": ({"scorer": {}}, "scorer class None is unknown"),
    "scorer class a list": ({"scorer": {"class": ["SparseScorer"]}}, "cannot be built"),
    "unknown setting": ({"scorer": {"class": "SparseScorer", "depth": 3}}, "cannot be built .*depth"),
    "no setting": ({"scorer": {"class": "SumScorer"}}, "cannot be built .*parts"),
    "wrong part": ({"scorer": {"class": "SumScorer", "parts": [3]}}, "cannot be built"),
    "unknown part": ({"scorer": {"class": "SumScorer", "parts": [{"class": "X"}]}}, "class 'X' is unknown"),
    "negative size": (
        {"scorer": {"class": "RecurrentScorer", "embedding": -1, "hidden": 4}, "codes": {"pos": ["N"]}},
        "cannot be built",
    ),
    "huge size": (
        {"scorer": {"class": "RecurrentScorer", "embedding": 10**12, "hidden": 10**12}, "codes": {"pos": ["N"]}},
        "cannot be built",
    ),
    "dense without columns": ({"scorer": {"class": "DenseScorer"}}, "cannot be built .*numeric columns"),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_a_wrong_description_is_named(case, model):
    fields, message = WRONG_FIELDS[case]
    redescribe(model, **fields)
    with pytest.raises(UserError, match=rf"(model\.json|weights\.safetensors): .*({message})"):
        load(model)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, "\x00", "not JSON", '{"format": NaN}'])
def test_other_text_is_no_description(text, model):
    (model / "model.json").write_text(text)
    with pytest.raises(UserError, match=r"model\.json: "):
        load(model)


def test_a_description_cut_anywhere_is_refused(model):
    whole = (model / "model.json").read_bytes()
    for size in range(0, len(whole) - 2, 11):  # the last two bytes are } and the end of the line
        (model / "model.json").write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"model\.json: no readable JSON"):
            load(model)


@pytest.mark.parametrize("told", [False, True])
def test_weights_cut_anywhere_are_refused(told, model):
    """Whether the checksum tells or was made to fit."""
    whole = (model / "weights.safetensors").read_bytes()
    for size in range(0, len(whole), len(whole) // 40):
        if told:
            (model / "weights.safetensors").write_bytes(whole[:size])
        else:
            reweigh(model, whole[:size])
        with pytest.raises(UserError, match=r"weights\.safetensors: " + ("damaged" if told else "no readable")):
            load(model)


def test_a_flipped_bit_is_found_anywhere(model):
    whole = (model / "weights.safetensors").read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        (model / "weights.safetensors").write_bytes(flipped)
        with pytest.raises(UserError, match=r"weights\.safetensors: damaged"):
            load(model)


def test_a_pickle_is_refused_and_not_executed(model, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    for weights in (pickle.dumps(Bomb()), pickle.dumps(Bomb(), protocol=0)):
        reweigh(model, weights)
        with pytest.raises(UserError, match=r"weights\.safetensors: no readable safetensors"):
            load(model)
    assert not (tmp_path / "executed").exists()


def test_numbers_that_numpy_lacks_are_refused(model):
    header = b'{"keys":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    reweigh(model, len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(UserError, match=r"weights\.safetensors: no readable safetensors file .*BF16"):
        load(model)


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_missing_file_is_named(name, model):
    (model / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: cannot be read \(No such file"):
        load(model)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere/model\.json: cannot be read \(No such file"):
        load(tmp_path / "nowhere")


# --- whole or not at all


@contextlib.contextmanager
def files_no_larger_than(size: int):
    """As on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_full_disk_leaves_the_old_model_and_no_litter(name, share, data, tmp_path):
    new = planted_data(codes=["word"]) if name == "model.json" else data  # a vocabulary makes the description long
    tagger = tagger_of(new, RecurrentScorer if name == "model.json" else SparseScorer, dead=0.0, zeros=0.0)
    artifact.save(tmp_path / "new", tagger, new)
    size = int(share * len(files(tmp_path / "new")[name]))
    artifact.save(tmp_path / "model", tagger_of(data), data)
    before = files(tmp_path / "model")
    with files_no_larger_than(size), pytest.raises(UserError, match=r"model could not be written .*kept"):
        artifact.save(tmp_path / "model", tagger, new)
    assert files(tmp_path / "model") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "new"]
    load(tmp_path / "model")


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_failure_between_the_renames_brings_the_old_model_back(fails_at, fault, data, model, monkeypatch):
    before, calls, rename = files(model), [], Path.rename

    def failing(path, target):
        calls.append(path)
        if len(calls) == fails_at:
            raise fault
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(UserError if isinstance(fault, OSError) else KeyboardInterrupt):
        artifact.save(model, tagger_of(data, seed=1), data)
    assert len(calls) >= fails_at
    assert files(model) == before
    assert list(model.parent.iterdir()) == [model]


def test_a_model_replaces_a_model(data, model):
    tagger = tagger_of(data, SCORERS["sum"], seed=1)
    artifact.save(model, tagger, data)
    assert load(model).tag(data.splits.test).strings() == predicted(tagger, data)
    assert list(model.parent.iterdir()) == [model]


def test_a_link_to_a_model_stays_a_link(data, model):
    link = model.parent / "link"
    link.symlink_to(model, target_is_directory=True)
    tagger = tagger_of(data, seed=1)
    artifact.save(link, tagger, data)
    assert link.is_symlink()
    assert load(model).tag(data.splits.test).strings() == predicted(tagger, data)


def test_a_folder_with_other_files_is_not_replaced(data, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds thesis\.tex; only a folder with nothing but a model is overwritten"):
        artifact.save(tmp_path, tagger_of(data), data)
    assert files(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_file_in_the_place_of_the_folder_is_not_replaced(data, tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(UserError, match="model could not be written"):
        artifact.save(tmp_path / "model", tagger_of(data), data)
    assert files(tmp_path) == {"model": b"a file"}
