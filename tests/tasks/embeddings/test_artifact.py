"""The artifact of word vectors: what is written is read, damage is found, zeros cost nothing."""

import json

import numpy as np
import pytest
import safetensors.numpy

from structsparse.artifacts.folder import read_description, write_model
from structsparse.base.errors import UserError
from structsparse.tasks import registry
from structsparse.tasks.embeddings import artifact
from structsparse.tasks.embeddings.predictor import WordVectors


def vectors(words: int = 30, dimensions: int = 8, share: float = 0.3, seed: int = 0) -> WordVectors:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(dimensions, words)) * (rng.random((dimensions, words)) < share)
    names = [f"word{k}" for k in range(words)]
    return WordVectors.of(names, np.arange(words, 0, -1), table, rng.normal(size=(dimensions, words)))


def test_a_model_is_read_as_it_was_written(tmp_path):
    model = vectors()
    size = artifact.save(tmp_path / "model", model)
    assert size == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    read = registry.load(tmp_path / "model")
    assert isinstance(read, WordVectors)
    assert (read.words, read.dimensions) == (model.words, 8)
    for name in ("frequency", "atoms", "vectors"):
        np.testing.assert_array_equal(getattr(read, name), getattr(model, name))


def test_there_may_be_fewer_contexts_than_words(tmp_path):
    model = vectors(dimensions=12)
    fewer = WordVectors(model.words, model.frequency, model.codes, model.atoms[:, :5])
    artifact.save(tmp_path / "model", fewer)
    np.testing.assert_array_equal(registry.load(tmp_path / "model").atoms, model.atoms[:, :5].astype(np.float32))


def test_codes_take_bytes_in_proportion_to_their_nonzeros(tmp_path):
    sizes = {}
    for share in (0.05, 0.5):
        model = vectors(2000, 52, share)
        artifact.save(tmp_path / "model", model)
        tensors = safetensors.numpy.load((tmp_path / "model" / "weights.safetensors").read_bytes())
        sizes[share] = sum(array.nbytes for name, array in tensors.items() if name.startswith("codes."))
        assert sizes[share] == 5 * model.codes.nnz + 2000  # a number and a byte for each, and a byte for each word
    assert sizes[0.05] < 0.1 * 4 * 2000 * 52 < sizes[0.5]


def changed(folder, change) -> None:
    """Write the model again with other tensors and fields, and the checksum that belongs to them."""
    tensors = safetensors.numpy.load((folder / "weights.safetensors").read_bytes())
    fields = {k: v for k, v in read_description(folder).items() if k not in ("format", "structsparse", "sha256")}
    change(tensors, fields)
    write_model(folder, fields, safetensors.numpy.save(tensors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, f: t.pop("dictionary"), "tensor dictionary is missing"),
        (lambda t, f: t.update(extra=np.zeros(2)), "tensor extra has no place"),
        (lambda t, f: f.update(words=f["words"][:-1]), r"codes.sizes is uint8 \(30,\), expected uint8 \(29,\)"),
        (lambda t, f: f.update(words=[*f["words"][:-1], "word0"]), "words is .* expected distinct words"),
        (lambda t, f: f.update(dimensions=0), "dimensions is 0"),
        (lambda t, f: t["codes.dimensions"].fill(200), "codes.dimensions holds 200, expected 0 to 7"),
        (lambda t, f: t["codes.dimensions"].fill(1), "codes.dimensions does not ascend"),
        (lambda t, f: t["codes.values"].fill(np.nan), "codes.values holds a weight that is NaN"),
        (lambda t, f: t["dictionary"].fill(-np.inf), "dictionary holds a weight that is NaN or infinite"),
    ],
)
def test_damage_is_found(change, message, tmp_path):
    folder = tmp_path / "model"
    artifact.save(folder, vectors())
    changed(folder, change)
    with pytest.raises(UserError, match=message):
        registry.load(folder)


def test_other_bytes_are_found_by_the_checksum(tmp_path):
    artifact.save(tmp_path, vectors())
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match="damaged, or of another model"):
        registry.load(tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["kind"] == "word vectors"
