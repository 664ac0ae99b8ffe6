"""Lossless coding of integers and words as bytes of an artifact: arithmetic coding for integers, LZMA for words.

Decoding checks its input. Damaged bytes lead to a UserError or to wrong values, but never to an access out of bounds.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence

import numpy as np

from structsparse.artifacts.folder import take_bytes
from structsparse.base.errors import UserError
from structsparse.kernels.artifacts import arithmetic_coder as coder

WIDEST = 14  # maximum number of bits of an encoded integer; coding longer integers does not save space
_LZMA = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 6}]}
_EXPANSION = 1000  # maximum number of decoded bytes per encoded byte of a word list


def bits_of(largest: int) -> int:
    """Artifact coding: the number of bits that are needed for the integers from 0 to `largest`."""
    return int(largest).bit_length()


# --- coding of integers (symbols)


def encode_symbols(
    symbols: np.ndarray, width: int, contexts: np.ndarray | None = None, chained: np.ndarray | None = None
) -> np.ndarray:
    """Artifact coding: encode integers below 2^width (symbols) as bytes (uint8) by adaptive arithmetic coding.

    For each symbol, `contexts` has an integer that selects the probability model. For symbols where `chained` is true,
    the previous symbol selects the model, too."""
    contexts, chained, counts = _coder_state(len(symbols), width, contexts, chained)
    buffer = np.zeros((2 * width + 1) * len(symbols) + 8, np.uint8)  # largest possible size of the encoded bytes
    symbols = symbols if symbols.dtype == np.uint8 else symbols.astype(np.int32)
    size = coder.encode(symbols, contexts, chained, width, counts, buffer)
    return buffer[:size].copy()


def decode_symbols(
    encoded: np.ndarray,
    name: str,
    width: int,
    count: int,
    contexts: np.ndarray | None = None,
    chained: np.ndarray | None = None,
) -> np.ndarray:
    """Artifact coding: decode `count` integers that `encode_symbols` has encoded.

    The result is a uint8 array if `width`, the number of bits of an integer, is at most 8, else an int32 array. `name`
    is the name of the tensor, for error messages."""
    symbols = np.empty(count, np.uint8 if width <= 8 else np.int32)
    contexts, chained, counts = _coder_state(count, width, contexts, chained)
    if coder.decode(encoded, contexts, chained, width, counts, symbols) < len(encoded):
        raise UserError(f"tensor {name} has {len(encoded):,} bytes, more than {count:,} symbols need")
    return symbols


def encode_with_width(symbols: np.ndarray, contexts: np.ndarray | None = None) -> np.ndarray:
    """Artifact coding: encode integers as bytes; the first byte is the number of bits of each integer."""
    width = bits_of(symbols.max(initial=0))
    return np.concatenate([np.array([width], np.uint8), encode_symbols(symbols, width, contexts)])


def decode_with_width(tensors: dict, name: str, count: int, contexts: np.ndarray | None = None) -> np.ndarray:
    """Artifact coding: decode `count` integers that `encode_with_width` has encoded (int64 array)."""
    encoded = take_bytes(tensors, name)
    if not len(encoded) or encoded[0] > WIDEST:
        raise UserError(f"tensor {name} does not begin with the number of bits of a symbol, at most {WIDEST}")
    return decode_symbols(encoded[1:], name, int(encoded[0]), count, contexts).astype(np.int64)


def _coder_state(
    count: int, width: int, contexts: np.ndarray | None, chained: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Artifact coding: the arrays `contexts`, `chained` and `counts` with which the arithmetic coder starts.

    `contexts` and `chained` have an entry for each symbol. `counts` has zeros, for counting the bits 0 and 1."""
    contexts = np.broadcast_to(np.int32(0), count) if contexts is None else contexts.astype(np.int32)
    chained = np.broadcast_to(np.False_, count) if chained is None else chained
    predecessors = (1 << width) if chained.any() else 0
    rows = (int(contexts.max(initial=0)) + 1 + predecessors) << width
    return contexts, chained, np.zeros((rows, 2), np.uint16)


# --- coding of words


def encode_words(words: Sequence[str]) -> np.ndarray:
    """Artifact coding: encode a list of words as bytes (uint8), as JSON compressed by LZMA."""
    text = json.dumps(list(words), ensure_ascii=True, separators=(",", ":")).encode()
    return np.frombuffer(lzma.compress(text, **_LZMA), np.uint8)


def decode_words(tensors: dict, count: int) -> list[str]:
    """Artifact coding: decode the tensor `words` to a list of `count` words."""
    encoded = take_bytes(tensors, "words")
    decompressor = lzma.LZMADecompressor(**_LZMA)
    try:
        text = decompressor.decompress(encoded.tobytes(), len(encoded) * _EXPANSION)
        words = json.loads(text) if decompressor.eof and not decompressor.unused_data else None
    except (lzma.LZMAError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"tensor words cannot be read ({error})") from None
    if not isinstance(words, list) or len(words) != count or not all(isinstance(word, str) for word in words):
        raise UserError(f"tensor words does not hold {count:,} words")
    return words
