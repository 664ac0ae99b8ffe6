"""The artifact of a language model: `model.json` has the vocabulary, `weights.safetensors` the contexts and weights.

A context is the sequence of words before a next word. Each stored pair of a context and a next word has one weight.

- The contexts form a trie, in which a context is the child of the context without its first word. For each context, the
  file stores its first word and the number of its children.
- A next word is stored as its rank among the next words that are stored for the parent context. A word that is not
  among them is stored as a number above all ranks.
- A weight takes only one bit if it equals the weight of the same word after the nearest shorter context.
- All arrays are compressed with zlib."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import safetensors.numpy

from structsparse.artifacts.folder import (
    COMMON_FIELDS,
    DESCRIPTION,
    WEIGHTS,
    Fields,
    TensorParts,
    as_float32,
    check_fields,
    errors_in,
    read_tensors,
    take_bytes,
    write_model,
)
from structsparse.artifacts.tables import decode_table, encode_table
from structsparse.base.errors import UserError
from structsparse.corpora.text import Vocabulary
from structsparse.corpora.text_reading import END, START, UNKNOWN, TextReading
from structsparse.kernels.structures import contexts_pruned as kernels
from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.tasks.lm.trie import Trie

TENSOR_PARTS = TensorParts(index=("nodes.", "entries.rank"), labels=("entries.same",))
KIND = "language model"  # the value of the field `kind` in model.json
_MOST = np.iinfo(np.int32).max  # maximum number of words, of contexts, and of pairs (context, next word)
_READING = ("sentences", "tokens", "lower", "classes")  # fields of `TextReading` (rules for reading text) in model.json


# --- writing the model folder


def save(folder: Path, model: LanguageModel) -> int:
    """Language-model artifact: write the model folder atomically, with float32 weights.

    Returns the number of bytes written."""
    trie, weights = model.trie, as_float32(folder, model.weights)
    written = slice(trie.words, None)  # the entries (context, next word) with a nonempty context
    same = weights[written] == weights[trie.entry_above[written]]
    code = _code_type(trie.words)
    tensors = {
        "nodes.children": np.diff(trie.children).astype(code),
        "nodes.word": trie.word[1:].astype(code),
        "nodes.entries": np.diff(trie.starts)[1:].astype(code),
        "entries.rank": _ranks(trie),
        "entries.same": np.packbits(same),
        **({} if model.base is None else {"base": as_float32(folder, model.base)}),
    }
    different = np.append(weights[: trie.words], weights[written][~same])
    description = {
        "kind": KIND,
        "order": trie.order,
        "alpha": model.alpha,
        "nodes": trie.nodes,
        "entries": trie.entries,
        "reading": {name: getattr(model.reading, name) for name in _READING},
        "words": list(model.vocabulary.words),
    }
    tensors = {name: _deflated(array) for name, array in tensors.items()}
    return write_model(folder, description, safetensors.numpy.save(tensors | _smallest(different)))


def _ranks(trie: Trie) -> np.ndarray:
    """Language-model artifact: the rank of each entry's word among the next words of the parent context.

    An entry is a pair of a context and a next word that has a weight. The parent context is the context without its
    first word. A word without an entry at the parent context gets the number n + c instead of a rank. n is the number
    of entries of the parent context, and c is the index of the word in the vocabulary. Entries of the empty context are
    left out."""
    over = trie.entry_above[trie.words :]
    above = trie.above[trie.entry_node[trie.words :]]
    first, end = trie.starts[above], trie.starts[above + 1]
    ranks = np.where(over >= first, over - first, end - first + trie.entry_word[trie.words :])
    return ranks.astype(_code_type(2 * trie.words))


def _smallest(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Language-model artifact: encode float32 weights as tensors, with zlib or, if smaller, with `encode_table`."""
    plain, coded = {"weights": _deflated(weights)}, encode_table("weights", weights)
    sizes = [sum(array.nbytes for array in tensors.values()) for tensors in (plain, coded)]
    return coded if sizes[1] < sizes[0] and "weights" not in coded else plain


def _deflated(array: np.ndarray) -> np.ndarray:
    """Language-model artifact: compress an array with zlib, after grouping its bytes by significance."""
    planes = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.itemsize).T
    return np.frombuffer(zlib.compress(planes.tobytes()), np.uint8)


# --- reading the model folder


def load(folder: Path, description: dict) -> LanguageModel:
    """Read the artifact of a language model, which is a folder written by `save`.

    If a file is damaged, the error names the file and the reason."""
    with errors_in(folder / DESCRIPTION):
        check_fields(description, _FIELDS)
        vocabulary, reading = Vocabulary(tuple(description["words"])), TextReading(**description["reading"])
    with errors_in(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), description["sha256"])
        trie = _trie(description, tensors)
        base = _inflated(tensors, "base", np.float32, trie.words) if "base" in tensors else None
        weights = _weights(trie, tensors)
        model = LanguageModel(vocabulary, reading, trie, weights, float(description["alpha"]), base)
        if tensors:
            raise UserError(f"tensor {min(tensors)} has no place in a language model")
        with np.errstate(all="ignore"):
            if not np.isfinite(model.scores).all():
                raise UserError("weights are NaN, infinite, or so large that probabilities are")
    return model


def _are_words(value: object) -> bool:
    """Language-model artifact: whether a field of model.json is a valid vocabulary, with `</s>` as the last word."""
    if not isinstance(value, list) or not all(isinstance(word, str) and word.split() == [word] for word in value):
        return False
    try:
        "".join(value).encode()
    except UnicodeEncodeError:  # a word contains half of a surrogate pair
        return False
    distinct = {*value}
    return len(distinct) == len(value) < _MOST and value[-1:] == [END] and UNKNOWN in distinct and START not in distinct


def _is_reading(value: object) -> bool:
    """Language-model artifact: whether a field of model.json is a valid set of rules for reading text."""
    if not isinstance(value, dict) or {*value} != {*_READING}:
        return False
    return [type(value[name]) for name in _READING] == [str, str, bool, bool]


def _is_size(value: object) -> bool:
    """Language-model artifact: whether a field of model.json is a valid size, an integer from 1 to 2^31 - 1."""
    return type(value) is int and 1 <= value <= _MOST


_FIELDS: Fields = COMMON_FIELDS | {
    "kind": (lambda value: value == KIND, f'"{KIND}"'),
    "order": (_is_size, "a number from 1 on"),
    "alpha": (lambda value: type(value) in (int, float) and 0 < value < math.inf, "a positive number"),
    "nodes": (_is_size, "a number of contexts"),
    "entries": (_is_size, "a number of weights"),
    "reading": (_is_reading, f"an object with {', '.join(_READING)}"),
    "words": (_are_words, f"distinct words, {UNKNOWN} among them, {END} the last, no {START}"),
}


def _trie(description: dict, tensors: dict) -> Trie:
    """Language-model artifact: read the trie of contexts from tensors, and check it.

    The tensors that are read are removed from the dictionary `tensors`."""
    words, nodes, entries = len(description["words"]), description["nodes"], description["entries"]
    code = _code_type(words)
    children = _inflated(tensors, "nodes.children", code, nodes).astype(np.int64)
    if children.sum() != nodes - 1:
        raise UserError(f"nodes.children add up to {children.sum():,}, expected {nodes - 1:,}")
    above = np.append(-1, np.repeat(np.arange(nodes), children)).astype(np.int32)
    if (above >= np.arange(nodes)).any():
        raise UserError("nodes.children make a context a child of itself or of a longer one")
    word = np.append(-1, _inflated(tensors, "nodes.word", code, nodes - 1).astype(np.int32)).astype(np.int32)
    _check_words("nodes.word", word[1:], above[1:], words + 1)
    sizes = _inflated(tensors, "nodes.entries", code, nodes - 1).astype(np.int64)
    if sizes.sum() != entries - words:
        raise UserError(f"nodes.entries add up to {sizes.sum():,}, expected {entries - words:,}")
    starts = np.cumsum(np.append([0, words], sizes))
    ranks = _inflated(tensors, "entries.rank", _code_type(2 * words), entries - words).astype(np.int64)
    entry_word = np.arange(entries, dtype=np.int32)
    trie = Trie(words, description["order"], above, word, starts.astype(np.int32), entry_word)
    _rank_words_(trie, ranks)
    _check_words("entries.rank", trie.entry_word[words:], np.repeat(np.arange(1, nodes), sizes), words)
    if (longest := int(trie.depth.max())) >= description["order"]:
        raise UserError(f"a context has {longest} words, expected fewer than order ({description['order']})")
    return trie


def _rank_words_(trie: Trie, ranks: np.ndarray) -> None:
    """Language-model artifact: restore the next words in `trie.entry_word` from their ranks.

    `ranks` is a result of `_ranks`. Contexts are processed from short to long."""
    entry_node, words = trie.entry_node, trie.entry_word
    begin, end = 1, int(trie.children[1])
    while begin < end:
        level = slice(trie.starts[begin], trie.starts[end])
        above, rank = trie.above[entry_node[level]], ranks[level.start - trie.words : level.stop - trie.words]
        first, size = trie.starts[above], trie.starts[above + 1] - trie.starts[above]
        ranked = words[np.minimum(first + rank, trie.entries - 1)]
        words[level] = np.where(rank < size, ranked, rank - size)
        begin, end = end, int(trie.children[end])


def _weights(trie: Trie, tensors: dict) -> np.ndarray:
    """Language-model artifact: read the weights from tensors (float32, one for each pair of a context and a next word).

    The tensors that are read are removed from the dictionary `tensors`."""
    written = trie.entries - trie.words
    bits = _inflated(tensors, "entries.same", np.uint8, -(-written // 8))
    same = np.append(np.zeros(trie.words, bool), np.unpackbits(bits, count=written).astype(bool))
    size = int(trie.entries - same.sum())
    plain = "weights" in tensors or "weights.counts" not in tensors
    different = _inflated(tensors, "weights", np.float32, size) if plain else decode_table(tensors, "weights", (size,))
    weights = np.empty(trie.entries, np.float32)
    kernels.spread(different, same, trie.entry_above, weights)
    return weights


def _check_words(name: str, codes: np.ndarray, owner: np.ndarray, end: int) -> None:
    """Language-model artifact: raise an error if the word codes in a tensor are invalid.

    All codes must lie below `end`. `owner[i]` is the index of the context to which `codes[i]` belongs. Within each
    context, the codes must ascend."""
    if len(codes) and not 0 <= codes.min() <= codes.max() < end:
        raise UserError(f"{name} holds {codes.max()}, expected 0 to {end - 1}, the code of a word")
    if ((codes[1:] <= codes[:-1]) & (owner[1:] == owner[:-1])).any():
        raise UserError(f"{name} does not ascend within every context")


def _code_type(words: int) -> np.dtype:
    """Language-model artifact: the smallest unsigned integer dtype for values up to `words` + 1, such as word codes."""
    return np.min_scalar_type(words + 1)


def _inflated(tensors: dict, name: str, kind, size: int) -> np.ndarray:
    """Language-model artifact: decompress a tensor that was compressed with `_deflated`.

    The result has `size` numbers of dtype `kind`. The tensor is removed from the dictionary `tensors`."""
    packed, kind = take_bytes(tensors, name), np.dtype(kind)
    inflater, expected = zlib.decompressobj(), size * kind.itemsize
    try:
        plain = inflater.decompress(packed.tobytes(), expected + 1)
    except zlib.error as error:
        raise UserError(f"tensor {name} cannot be inflated ({error})") from None
    if len(plain) != expected or not inflater.eof or inflater.unused_data:
        raise UserError(f"tensor {name} does not inflate to {size:,} numbers of {kind.itemsize} bytes")
    planes = np.frombuffer(plain, np.uint8).reshape(kind.itemsize, size)
    return np.ascontiguousarray(planes.T).view(kind).reshape(size)
