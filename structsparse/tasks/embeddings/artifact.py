"""The artifact of word vectors: `model.json` has the words, `weights.safetensors` the codes and the dictionary.

Only the nonzero codes are stored, row by row: their values, their dimensions in the smallest type that can hold them,
and how many each word has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors.numpy
from scipy import sparse

from structsparse.artifacts.folder import (
    COMMON_FIELDS,
    DESCRIPTION,
    WEIGHTS,
    Fields,
    TensorParts,
    are_strings,
    as_float32,
    check_fields,
    check_weights,
    errors_in,
    model_folder,
    read_description,
    read_tensors,
    take,
    write_model,
)
from structsparse.base.errors import UserError
from structsparse.tasks.embeddings.predictor import PlainVectors, VectorTable, WordVectors
from structsparse.tasks.embeddings.vector_files import read_vectors

KIND = "word vectors"  # the value of the field `kind` in model.json
TENSOR_PARTS = TensorParts(index=("codes.dimensions", "codes.sizes"))
_FIELDS: Fields = COMMON_FIELDS | {
    "kind": (lambda value: value == KIND, f'"{KIND}"'),
    "dimensions": (lambda value: type(value) is int and value > 0, "a number of at least 1"),
    "words": (lambda value: are_strings(value) and len({*value}) == len(value) > 0, "distinct words"),
}


def save(folder: Path, model: WordVectors) -> int:
    """Word vector artifact: write the model folder atomically, with float32 numbers; returns its size in bytes."""
    codes = model.codes.sorted_indices()
    tensors = {
        "codes.values": as_float32(folder, codes.data),
        "codes.dimensions": codes.indices.astype(_small(model.dimensions)),
        "codes.sizes": np.diff(codes.indptr).astype(_small(model.dimensions)),
        "dictionary": as_float32(folder, model.atoms),
        "frequency": model.frequency,
    }
    description = {"kind": KIND, "dimensions": model.dimensions, "words": list(model.words)}
    return write_model(folder, description, safetensors.numpy.save(tensors))


def load(folder: Path, description: dict) -> WordVectors:
    """Read the artifact of word vectors, which is a folder written by `save`; every part is checked."""
    with errors_in(folder / DESCRIPTION):
        check_fields(description, _FIELDS)
    words, dimensions = description["words"], description["dimensions"]
    with errors_in(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), description["sha256"])
        codes = _codes(tensors, len(words), dimensions)
        contexts = min(len(words), tensors["dictionary"].shape[-1]) if "dictionary" in tensors else len(words)
        atoms = take(tensors, "dictionary", ["float32"], (dimensions, contexts))
        frequency = take(tensors, "frequency", ["int64"], (len(words),))
        if tensors:
            raise UserError(f"tensor {min(tensors)} has no place in word vectors")
        for name, array in (("codes.values", codes.data), ("dictionary", atoms)):
            check_weights(name, np.abs(array))
    return WordVectors(tuple(words), frequency, codes, atoms)


def load_file(path: Path) -> PlainVectors:
    """Read word vectors of another program from a file of word2vec, GloVe or fastText."""
    return read_vectors(path)


def load_any(path: Path) -> VectorTable:
    """Read word vectors from a file of another program, from a model folder, or from the folder of a training run."""
    if path.is_file():
        return load_file(path)
    folder = model_folder(path)
    return load(folder, read_description(folder))


def _codes(tensors: dict, words: int, dimensions: int) -> sparse.csr_array:
    """Word vector artifact: read the codes of all words; the tensors are removed from the dictionary `tensors`."""
    small = _small(dimensions).name
    sizes = take(tensors, "codes.sizes", [small], (words,)).astype(np.int64)
    entries = int(sizes.sum())
    columns = take(tensors, "codes.dimensions", [small], (entries,)).astype(np.int32)
    values = take(tensors, "codes.values", ["float32"], (entries,))
    row = np.repeat(np.arange(words), sizes)
    if entries and columns.max() >= dimensions:
        raise UserError(f"codes.dimensions holds {columns.max()}, expected 0 to {dimensions - 1}")
    if (np.diff(columns)[np.diff(row) == 0] <= 0).any():
        raise UserError("codes.dimensions does not ascend within every word")
    return sparse.csr_array((values, columns, np.concatenate([[0], np.cumsum(sizes)])), shape=(words, dimensions))


def _small(most: int) -> np.dtype:
    """Word vector artifact: the smallest unsigned integer dtype for values from 0 to `most`."""
    return np.min_scalar_type(most)
