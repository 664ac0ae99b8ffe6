"""Formats of word vectors that other programs read: word2vec and GloVe text, numpy and safetensors files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import numpy as np
import safetensors.numpy

from structsparse.tasks.embeddings.predictor import VectorTable


def glove(model: VectorTable) -> Iterator[bytes]:
    """Export of word vectors as GloVe text: a line for each word, with the word and its numbers."""
    for word, vector in zip(model.words, model.vectors, strict=True):
        yield f"{word} {' '.join(f'{number:.6g}' for number in vector.tolist())}\n".encode()


def word2vec(model: VectorTable) -> Iterator[bytes]:
    """Export of word vectors as word2vec text: GloVe's lines below the numbers of words and dimensions."""
    yield f"{len(model)} {model.dimensions}\n".encode()
    yield from glove(model)


def npz(model: VectorTable) -> Iterator[bytes]:
    """Export of word vectors as a numpy file with the arrays `words` (strings) and `vectors` (float32)."""
    buffer = io.BytesIO()
    np.savez(buffer, words=np.array(model.words), vectors=model.vectors)
    yield buffer.getvalue()


def safetensors_file(model: VectorTable) -> Iterator[bytes]:
    """Export of word vectors as a safetensors file with `vectors`, and `words` as bytes of UTF-8 between newlines."""
    words = np.frombuffer("\n".join(model.words).encode(), np.uint8)
    yield safetensors.numpy.save({"vectors": model.vectors, "words": words})


FORMATS: dict[str, Callable[[VectorTable], Iterator[bytes]]] = {
    "word2vec": word2vec,
    "glove": glove,
    "npz": npz,
    "safetensors": safetensors_file,
}
