"""A language model as a folder: `model.json` has its words and how it reads text, `weights.safetensors` its living
contexts.

Contexts stand level by level, the children of a context side by side, so that numbers of children and words are all
that is needed. A next word is its rank among those of the context above, of which long contexts have few, or, if they
lack it, comes after them. A weight that equals that of the same word in the context above, as penalties by l-infinity
bring about, is one bit. The bytes of all numbers are sorted by their weight, and deflated.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import safetensors.numpy

from structsparse.artifacts.folder import (
    COMMON,
    DESCRIPTION,
    LANGUAGE_MODEL,
    WEIGHTS,
    Fields,
    blaming,
    check_fields,
    read_tensors,
    write,
)
from structsparse.artifacts.tables import packed, unpacked
from structsparse.base.errors import UserError
from structsparse.corpora.text import END, START, UNKNOWN, Reading, Vocabulary
from structsparse.kernels.structures import contexts_pruned as ngrams
from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.tasks.lm.trie import Trie

_MOST = np.iinfo(np.int32).max  # nodes, entries
_READING = ("sentences", "tokens", "lower", "classes")  # a limit is of the training text alone


def save(folder: Path, model: LanguageModel) -> int:
    """Write the living part of a model, whole or not at all, in float32; the bytes of the folder."""
    trie, weights, base = model.trie, _single(folder, model.weights), _single(folder, model.base)
    beyond = slice(trie.words, None)  # the entries that are written
    same = weights[beyond] == weights[trie.entry_above[beyond]]
    code = _code(trie.words)
    tensors = {
        "nodes.children": np.diff(trie.children).astype(code),
        "nodes.word": trie.word[1:].astype(code),
        "nodes.entries": np.diff(trie.starts)[1:].astype(code),
        "entries.rank": _ranks(trie),
        "entries.same": np.packbits(same),
        **({} if base is None else {"base": base}),
    }
    own = np.append(weights[: trie.words], weights[beyond][~same])
    description = {
        "kind": LANGUAGE_MODEL,
        "order": trie.order,
        "alpha": model.alpha,
        "nodes": trie.nodes,
        "entries": trie.entries,
        "reading": {name: getattr(model.reading, name) for name in _READING},
        "words": list(model.vocabulary.words),
    }
    tensors = {name: _deflated(array) for name, array in tensors.items()}
    return write(folder, description, safetensors.numpy.save(tensors | _told(own)))


def loaded(folder: Path, known: dict) -> LanguageModel:
    """What `save` has written, or which file is wrong and why; `known` is what `model.json` says."""
    with blaming(folder / DESCRIPTION):
        check_fields(known, _FIELDS)
        vocabulary, reading = Vocabulary(tuple(known["words"])), Reading(**known["reading"])
    with blaming(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), known["sha256"])
        trie = _trie(known, tensors)
        base = _inflated(tensors, "base", np.float32, trie.words) if "base" in tensors else None
        model = LanguageModel(vocabulary, reading, trie, _weights(trie, tensors), float(known["alpha"]), base)
        if tensors:
            raise UserError(f"tensor {min(tensors)} has no place in a language model")
        with np.errstate(all="ignore"):
            if not np.isfinite(model.scores).all():
                raise UserError("weights are NaN, infinite, or so large that probabilities are")
    return model


def _single(folder: Path, numbers: np.ndarray | None) -> np.ndarray | None:
    """In float32, which must hold them."""
    if numbers is None:
        return None
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    if not np.isfinite(single).all():
        raise UserError(f"{folder}: the model has a weight that is NaN, infinite or too large, expected numbers")
    return single


def _vocabulary(value: object) -> bool:
    if not isinstance(value, list) or not all(isinstance(word, str) and word.split() == [word] for word in value):
        return False
    try:
        "".join(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    named = {*value}
    return len(named) == len(value) < _MOST and value[-1:] == [END] and UNKNOWN in named and START not in named


def _is_reading(value: object) -> bool:
    if not isinstance(value, dict) or {*value} != {*_READING}:
        return False
    return [type(value[name]) for name in _READING] == [str, str, bool, bool]


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MOST


_FIELDS: Fields = COMMON | {
    "kind": (lambda value: value == LANGUAGE_MODEL, f'"{LANGUAGE_MODEL}"'),
    "order": (_is_size, "a number from 1 on"),
    "alpha": (lambda value: type(value) in (int, float) and 0 < value < math.inf, "a positive number"),
    "nodes": (_is_size, "a number of contexts"),
    "entries": (_is_size, "a number of weights"),
    "reading": (_is_reading, f"an object with {', '.join(_READING)}"),
    "words": (_vocabulary, f"distinct words, {UNKNOWN} among them, {END} the last, no {START}"),
}


def _trie(known: dict, tensors: dict) -> Trie:
    words, nodes, entries = len(known["words"]), known["nodes"], known["entries"]
    code = _code(words)
    children = _inflated(tensors, "nodes.children", code, nodes).astype(np.int64)
    if children.sum() != nodes - 1:
        raise UserError(f"nodes.children add up to {children.sum():,}, expected {nodes - 1:,}")
    above = np.append(-1, np.repeat(np.arange(nodes), children)).astype(np.int32)
    if (above >= np.arange(nodes)).any():
        raise UserError("nodes.children give some context to itself or to a longer one")
    word = np.append(-1, _inflated(tensors, "nodes.word", code, nodes - 1).astype(np.int32)).astype(np.int32)
    _check_words("nodes.word", word[1:], above[1:], words + 1)
    own = _inflated(tensors, "nodes.entries", code, nodes - 1).astype(np.int64)
    if own.sum() != entries - words:
        raise UserError(f"nodes.entries add up to {own.sum():,}, expected {entries - words:,}")
    starts = np.cumsum(np.append([0, words], own))
    ranks = _inflated(tensors, "entries.rank", _code(2 * words), entries - words).astype(np.int64)
    trie = Trie(words, known["order"], above, word, starts.astype(np.int32), np.arange(entries, dtype=np.int32))
    _rank_words_(trie, ranks)
    _check_words("entries.rank", trie.entry_word[words:], np.repeat(np.arange(1, nodes), own), words)
    if (longest := int(trie.depth.max())) >= known["order"]:
        raise UserError(f"a context has {longest} words, expected fewer than order ({known['order']})")
    return trie


def _ranks(trie: Trie) -> np.ndarray:
    """Of every entry but the first V its word's place among the words of the context above or, if it is none of them,
    how many these are plus the word."""
    over = trie.entry_above[trie.words :]
    above = trie.above[trie.entry_node[trie.words :]]
    first, end = trie.starts[above], trie.starts[above + 1]
    ranks = np.where(over >= first, over - first, end - first + trie.entry_word[trie.words :])
    return ranks.astype(_code(2 * trie.words))


def _rank_words_(trie: Trie, ranks: np.ndarray) -> None:
    """Fill in the words of the entries from their ranks, level by level."""
    entry_node, words = trie.entry_node, trie.entry_word
    begin, end = 1, int(trie.children[1])
    while begin < end:
        own = slice(trie.starts[begin], trie.starts[end])
        above, rank = trie.above[entry_node[own]], ranks[own.start - trie.words : own.stop - trie.words]
        first, size = trie.starts[above], trie.starts[above + 1] - trie.starts[above]
        there = words[np.minimum(first + rank, trie.entries - 1)]
        words[own] = np.where(rank < size, there, rank - size)
        begin, end = end, int(trie.children[end])


def _weights(trie: Trie, tensors: dict) -> np.ndarray:
    """float32 [entries]"""
    beyond = trie.entries - trie.words
    bits = _inflated(tensors, "entries.same", np.uint8, -(-beyond // 8))
    same = np.append(np.zeros(trie.words, bool), np.unpackbits(bits, count=beyond).astype(bool))
    size = int(trie.entries - same.sum())
    plain = "weights" in tensors or "weights.counts" not in tensors
    own = _inflated(tensors, "weights", np.float32, size) if plain else unpacked(tensors, "weights", (size,))
    weights = np.empty(trie.entries, np.float32)
    ngrams.spread(own, same, trie.entry_above, weights)
    return weights


def _told(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Weights float32 deflated, or, where that is smaller, as the tables of other models."""
    plain, coded = {"weights": _deflated(weights)}, packed("weights", weights)
    sizes = [sum(array.nbytes for array in way.values()) for way in (plain, coded)]
    return coded if sizes[1] < sizes[0] and "weights" not in coded else plain


def _check_words(name: str, found: np.ndarray, owner: np.ndarray, end: int) -> None:
    """Codes below `end` that ascend within each owner."""
    if len(found) and not 0 <= found.min() <= found.max() < end:
        raise UserError(f"{name} holds {found.max()}, expected 0 to {end - 1}, the code of a word")
    if ((found[1:] <= found[:-1]) & (owner[1:] == owner[:-1])).any():
        raise UserError(f"{name} does not ascend within every context")


def _code(words: int) -> np.dtype:
    """What holds the codes of words, and numbers of them: the start of a sentence comes on top."""
    return np.min_scalar_type(words + 1)


def _deflated(array: np.ndarray) -> np.ndarray:
    planes = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.itemsize).T
    return np.frombuffer(zlib.compress(planes.tobytes()), np.uint8)


def _inflated(tensors: dict, name: str, kind, size: int) -> np.ndarray:
    """What `_deflated` has made of `size` numbers."""
    if name not in tensors:
        raise UserError(f"tensor {name} is missing")
    packed, kind = tensors.pop(name), np.dtype(kind)
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise UserError(f"tensor {name} is {packed.dtype} {packed.shape}, expected deflated bytes")
    inflater, expected = zlib.decompressobj(), size * kind.itemsize
    try:
        found = inflater.decompress(packed.tobytes(), expected + 1)
    except zlib.error as error:
        raise UserError(f"tensor {name} cannot be inflated ({error})") from None
    if len(found) != expected or not inflater.eof or inflater.unused_data:
        raise UserError(f"tensor {name} does not inflate to {size:,} numbers of {kind.itemsize} bytes")
    planes = np.frombuffer(found, np.uint8).reshape(kind.itemsize, size)
    return np.ascontiguousarray(planes.T).view(kind).reshape(size)
