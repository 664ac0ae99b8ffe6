"""Coding of symbols and words: the bytes of a twin in plain Python, decoded again, and refused when damaged."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse.artifacts.coding import decode_symbols, decode_words, encode_symbols, encode_words
from structsparse.base.errors import UserError

FEW = settings(max_examples=60)


def twin(symbols, width, contexts, chained) -> bytes:
    """The bytes of the coder, computed with integers of any size, so that nothing is carried."""
    counts, low, span, shifted = {}, 0, 2**32 - 1, 0
    for i, symbol in enumerate(symbols):
        context = contexts[i] + (1 + symbols[i - 1] if chained[i] else 0)
        bits = f"{symbol:0{width}b}" if width else ""
        for k, bit in enumerate(bits):
            zeros, ones = counts.get((context, bits[:k]), (0, 0))
            share = min(max(((2 * zeros + 1) * 65536) // (2 * (zeros + ones) + 2), 1), 65535)
            bound = (span // 65536) * share
            low, span = (low, bound) if bit == "0" else (low + bound, span - bound)
            zeros, ones = (zeros + 1, ones) if bit == "0" else (zeros, ones + 1)
            if max(zeros, ones) == 2**14:
                zeros, ones = zeros // 2, ones // 2
            counts[context, bits[:k]] = zeros, ones
            while span < 2**24:
                low, span, shifted = low * 256, span * 256, shifted + 1
    last = -(-low // 2**24)  # rounded up: within the span
    return last.to_bytes(shifted + 1, "big").rstrip(b"\0")


@st.composite
def symbols_of_contexts(draw):
    width, count, kinds = draw(st.integers(0, 5)), draw(st.integers(0, 200)), draw(st.integers(1, 4))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    skewed = generator.random(count) ** draw(st.sampled_from([1, 4, 30]))
    symbols = np.minimum((skewed * 2**width).astype(int), 2**width - 1)
    return (
        symbols,
        width,
        generator.integers(0, kinds, count),
        generator.random(count) < draw(st.sampled_from([0, 0.6])),
    )


@FEW
@given(symbols_of_contexts())
def test_the_coder_writes_the_bytes_of_its_twin_and_decodes_them(case):
    symbols, width, contexts, chained = case
    if len(chained):
        chained[0] = False
    stored = encode_symbols(symbols, width, contexts, chained)
    assert stored.tobytes() == twin(symbols.tolist(), width, contexts.tolist(), chained.tolist())
    np.testing.assert_array_equal(decode_symbols(stored, "x", width, len(symbols), contexts, chained), symbols)


def test_counts_of_long_sequences_are_halved():
    symbols = np.r_[np.zeros(40_000, int), np.tile([0, 1], 300), np.ones(20_000, int)]
    stored, plain = encode_symbols(symbols, 1), [0] * len(symbols)
    assert stored.tobytes() == twin(symbols.tolist(), 1, plain, plain)
    np.testing.assert_array_equal(decode_symbols(stored, "x", 1, len(symbols)), symbols)


def test_symbols_cost_their_entropy():
    draw = np.random.default_rng(0)
    chances = np.array([0.55, 0.2, 0.1, 0.1, 0.05])
    symbols = draw.choice(5, 20_000, p=chances)
    entropy = -(chances * np.log2(chances)).sum() * len(symbols) / 8
    assert entropy * 0.98 < len(encode_symbols(symbols, 3)) < entropy * 1.03


# --- words


def test_words_are_decoded_in_their_order():
    words = ["of", "", "a b", 'say "x"', "line\nend", "größe", "\ud800", "of the"]
    assert decode_words({"words": encode_words(words)}, len(words)) == words
    assert decode_words({"words": encode_words([])}, 0) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda encoded: encoded[:-3], "does not hold 3 words"),
        (lambda encoded: np.r_[encoded, encoded], "does not hold 3 words"),
        (lambda encoded: np.zeros(0, np.uint8), "does not hold 3 words"),
        (lambda encoded: encoded[5:], "cannot be read|does not hold"),
        (lambda encoded: encode_words(["a", "b"]), "does not hold 3 words"),
        (lambda encoded: encode_words([1, 2, 3]), "does not hold 3 words"),
        (lambda encoded: encode_words(["a" * 10**8, "b", "c"]), "does not hold 3 words"),
        (lambda encoded: encoded.astype(np.float32), "expected bytes"),
    ],
)
def test_damaged_words_are_refused(change, message):
    with pytest.raises(UserError, match=f"tensor words .*({message})"):
        decode_words({"words": change(encode_words(["a", "b", "c"]))}, 3)
