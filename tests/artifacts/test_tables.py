"""What a file holds of tables and keys: read as told, against a twin in plain Python, and refused when damaged."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse.artifacts import tables as packing
from structsparse.artifacts.tables import LEAST_GUARD, heard, index_of, packed, packed_keys, told, unpacked
from structsparse.base.errors import UserError
from structsparse.kernels.artifacts import arithmetic_coder as coder
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import expand

FEW = settings(max_examples=60)
TEMPLATES = expand(["word[0]", "word[-1..0]", "pos[1]"])


@pytest.mark.parametrize("width", [0, 1, 5, 8, 13, 33, 61])
def test_bits_lie_side_by_side_the_highest_first(width):
    numbers = np.random.default_rng(width).integers(0, 2**63, 50, dtype=np.uint64)
    text = "101" + "".join(f"{int(number):063b}"[63 - width :] if width else "" for number in numbers)
    told = np.zeros(-(-len(text) // 8), np.uint8)
    assert coder.lay_bits(np.array([5], np.uint64), 3, told, 0) == 3
    assert coder.lay_bits(numbers, width, told, 3) == len(text)
    assert "".join(f"{byte:08b}" for byte in told.tolist())[: len(text)] == text
    found = np.empty(50, np.uint64)
    assert coder.lift_bits(told, 3, width, found) == len(text)
    np.testing.assert_array_equal(found, numbers & np.uint64((1 << width) - 1))


def twin(symbols, width, contexts, chained) -> bytes:
    """The bytes of the coder, by whole numbers without end: nothing is carried."""
    seen, low, span, shifted = {}, 0, 2**32 - 1, 0
    for i, symbol in enumerate(symbols):
        context = contexts[i] + (1 + symbols[i - 1] if chained[i] else 0)
        bits = f"{symbol:0{width}b}" if width else ""
        for k, bit in enumerate(bits):
            zeros, ones = seen.get((context, bits[:k]), (0, 0))
            share = min(max(((2 * zeros + 1) * 65536) // (2 * (zeros + ones) + 2), 1), 65535)
            bound = (span // 65536) * share
            low, span = (low, bound) if bit == "0" else (low + bound, span - bound)
            zeros, ones = (zeros + 1, ones) if bit == "0" else (zeros, ones + 1)
            if max(zeros, ones) == 2**14:
                zeros, ones = zeros // 2, ones // 2
            seen[context, bits[:k]] = zeros, ones
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
def test_the_coder_writes_the_bytes_of_its_twin_and_reads_them(case):
    symbols, width, contexts, chained = case
    if len(chained):
        chained[0] = False
    stored = told(symbols, width, contexts, chained)
    assert stored.tobytes() == twin(symbols.tolist(), width, contexts.tolist(), chained.tolist())
    np.testing.assert_array_equal(heard({"x": stored}, "x", width, len(symbols), contexts, chained), symbols)


def test_long_runs_are_remembered_in_part():
    symbols = np.r_[np.zeros(40_000, int), np.tile([0, 1], 300), np.ones(20_000, int)]
    stored, plain = told(symbols, 1), [0] * len(symbols)
    assert stored.tobytes() == twin(symbols.tolist(), 1, plain, plain)
    np.testing.assert_array_equal(heard({"x": stored}, "x", 1, len(symbols)), symbols)


def test_symbols_cost_their_entropy():
    draw = np.random.default_rng(0)
    chances = np.array([0.55, 0.2, 0.1, 0.1, 0.05])
    symbols = draw.choice(5, 20_000, p=chances)
    entropy = -(chances * np.log2(chances)).sum() * len(symbols) / 8
    assert entropy * 0.98 < len(told(symbols, 3)) < entropy * 1.03


# --- tables


VALUES = {
    "any": lambda draw, shape: draw.normal(size=shape),
    "multiples": lambda draw, shape: draw.integers(-31, 32, shape) * np.float32(0.09375),
    "few": lambda draw, shape: draw.choice([0.1, -0.1, 0.7, 1e-30], shape),
    "forbidden": lambda draw, shape: draw.choice([-np.inf, 0.5, 3.0], shape),
    "one": lambda draw, shape: np.full(shape, -0.3),
}


@FEW
@given(st.sampled_from([*VALUES]), st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 40), st.booleans())
def test_a_table_is_read_as_it_was(kind, seed, rows, labels, repeated):
    draw = np.random.default_rng(seed)
    table = VALUES[kind](draw, (rows, labels)).astype(np.float32) * np.float32(1)
    table[draw.random((rows, labels)) < draw.random()] = 0
    if repeated and rows:
        table = table[draw.integers(0, min(3, rows), rows)]
    for whole in (table, np.ascontiguousarray(table[:, 0])):
        tensors = packed("x", whole)
        assert sum(a.nbytes for a in tensors.values()) <= whole.nbytes
        found = unpacked(tensors, "x", whole.shape)
        assert not tensors
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("shape", [(20_000,), (20_000, 1), (10_000, 2)])
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_of_too_many_values_nothing_is_sorted_and_the_bytes_are_the_same(shape, zeros, monkeypatch):
    random = np.random.default_rng(0)
    table = np.where(random.random(shape) < zeros, 0, random.standard_normal(shape)).astype(np.float32)
    found = packed("w", table)
    monkeypatch.setattr(packing, "_too_many", lambda values: False)
    expected = packed("w", table)
    assert {*found} == {*expected}
    assert all(np.array_equal(found[name], expected[name]) for name in found)
    np.testing.assert_array_equal(unpacked(found, "w", shape), table)


def test_few_values_cost_few_bits_and_equal_rows_little():
    draw = np.random.default_rng(0)
    table = (draw.integers(-3, 4, (4000, 8)) * (draw.random((4000, 8)) < 0.2) * 0.25).astype(np.float32)
    entries = np.count_nonzero(table)
    tensors = packed("x", table)
    assert tensors["x.step"] == 0.25
    assert tensors["x.codes"].nbytes * 8 < 2.7 * entries  # log2 6 is 2.58
    again = table[draw.integers(0, 30, 4000)]
    tensors = packed("x", again)
    assert tensors["x.rows"].nbytes * 8 < 5.1 * 4000  # log2 30 is 4.91
    assert sum(a.nbytes for name, a in tensors.items() if name != "x.rows") < 300
    assert "x.rows" not in packed("x", table)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0.75, -2.25, 1.5], 0.75),
        ([1.0, 0.1], None),
        ([3.0], 3.0),
        ([], None),
        ([-np.inf, 1.0], None),
        ([2.0**-140, 2.0**-138], 2.0**-140),
        ([1e30, 1e-30], None),
    ],
)
def test_the_step_is_the_largest_number_that_all_are_multiples_of(values, step):
    found = packing.step_of(np.array(values, np.float32))
    assert found == (None if step is None else np.float32(step))


def damaged(change) -> dict:
    draw = np.random.default_rng(1)
    table = (draw.integers(-9, 10, (60, 6)) * (draw.random((60, 6)) < 0.3) * 0.5).astype(np.float32)
    tensors = packed("x", table)
    assert sorted(tensors) == ["x.codes", "x.counts", "x.labels", "x.step"]
    return change(tensors, np.count_nonzero(table, axis=1))


def labels_of(tensors, counts, label: int):
    """Every row has the same label, time and again."""
    contexts, chained, width = packing._label_contexts(counts, 6)
    return tensors | {"x.labels": told(np.full(len(contexts), label), width, contexts, chained)}


def longer(name):
    return lambda tensors, counts: tensors | {name: np.r_[tensors[name], np.full(9, 7, np.uint8)]}


def without(name):
    return lambda tensors, counts: {key: value for key, value in tensors.items() if key != name}


FAULTS = {
    "count too large": (lambda t, c: t | {"x.counts": told(np.full(60, 7), 3)}, "counts holds 7, expected 0 to 6"),
    "label too large": (lambda t, c: labels_of(t, c, 7), "labels holds 7, expected 0 to 5, one of 6 labels"),
    "label twice": (lambda t, c: labels_of(t, c, 5), "labels does not ascend within every row"),
    "counts too long": (longer("x.counts"), "counts has .* more than 60 symbols need"),
    "labels too long": (longer("x.labels"), "labels has .* bytes, which are more than"),
    "codes too long": (longer("x.codes"), "codes has .* bytes, which are more than"),
    "codes too wide": (lambda t, c: t | {"x.codes": np.array([60], np.uint8)}, "does not begin with the bits"),
    "no codes at all": (lambda t, c: t | {"x.codes": np.zeros(0, np.uint8)}, "does not begin with the bits"),
    "no counts": (without("x.counts"), "tensor x.counts is missing"),
    "no labels": (without("x.labels"), "tensor x.labels is missing"),
    "no step": (without("x.step"), "tensor x.values is missing"),
    "no codes": (without("x.codes"), "tensor x.values is missing"),
    "nothing": (lambda t, c: {}, "tensor x is missing"),
    "steps": (lambda t, c: t | {"x.step": np.ones(2, np.float32)}, "tensor x.step is float32"),
    "floats": (lambda t, c: t | {"x.counts": np.ones(9, np.float32)}, "counts is float32 .*expected bytes"),
    "value too many": (
        lambda t, c: without("x.step")(t, c) | {"x.values": np.ones(3, np.float32)},
        "codes holds .*, expected 0 to 2",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_damage_is_told_in_a_sentence(case):
    change, message = FAULTS[case]
    with pytest.raises(UserError, match=message):
        unpacked(damaged(change), "x", (60, 6))


@FEW
@given(st.integers(0, 2**32), st.sampled_from(["x.codes", "x.counts", "x.labels"]))
def test_any_bytes_are_a_table_or_refused(seed, name):
    draw = np.random.default_rng(seed)
    noise = draw.integers(0, 256, draw.integers(0, 60)).astype(np.uint8)
    try:
        table = unpacked(damaged(lambda t, c: t | {name: noise}), "x", (60, 6))
    except UserError:
        return
    assert table.shape == (60, 6)


# --- keys


def index_with(counts, seed: int, guard: int | None = None) -> TokenIndex:
    draw = np.random.default_rng(seed)
    keys = [np.sort(draw.choice(2**62, count, replace=False).astype(np.uint64) * np.uint64(4)) for count in counts]
    offsets = np.cumsum([0, *counts])
    index = TokenIndex(tuple(TEMPLATES), offsets, np.concatenate(keys), np.arange(offsets[-1], dtype=np.int32))
    return index if guard is None else index.shortened(guard)


def read_again(index: TokenIndex, change=lambda stored: stored) -> TokenIndex:
    sizes = zip(np.diff(index.offsets).tolist(), index.lengths.tolist(), strict=True)
    templates = {t.name: list(size) for t, size in zip(index.templates, sizes, strict=True) if size[0]}
    return index_of(TokenIndex, lambda line: expand([line]), templates, {"keys": change(packed_keys(index))})


@FEW
@given(st.lists(st.integers(0, 300), min_size=3, max_size=3), st.integers(0, 2**32), st.integers(LEAST_GUARD, 70))
def test_keys_are_read_as_they_were(counts, seed, guard):
    index = index_with(counts, seed, guard)
    found = read_again(index)
    np.testing.assert_array_equal(found.keys, index.keys)
    names = [template.name for template, count in zip(TEMPLATES, counts, strict=True) if count]
    assert found.names == names
    np.testing.assert_array_equal(found.masks, index.masks[np.array(counts) > 0])


@pytest.mark.parametrize("counts", [[1, 2, 8], [16, 15, 1]])
def test_keys_that_are_nearly_all_there_are_of_so_few_bits_are_read_as_they_were(counts):
    keys = [np.sort(np.random.default_rng(0).permutation(16)[:count]).astype(np.uint64) for count in counts]
    offsets = np.cumsum([0, *counts])
    rows = np.arange(offsets[-1], dtype=np.int32)
    index = TokenIndex(tuple(TEMPLATES), offsets, np.concatenate(keys) << np.uint64(60), rows, np.full(3, 4))
    np.testing.assert_array_equal(read_again(index).keys, index.keys)
    np.testing.assert_array_equal(read_again(index.shortened(1)).keys, index.shortened(1).keys)
    assert index.shortened(60, lambda k: keys[k] << np.uint64(60)).lengths.tolist() == [4, 4, 4]


@pytest.mark.parametrize("guard", [4, 10, 16])
def test_a_key_costs_little_more_than_must_be(guard):
    """Of n keys among n * 2^guard the choice itself has guard + log2 e bits for each."""
    count = 1 << 12
    index = index_with([count - 1, 1, 0], 3)
    short = index.shortened(guard)
    bits = int(short.lengths[0])
    assert bits >= 12 + guard
    assert len(packed_keys(short)) * 8 / count < bits - 12 + np.log2(np.e) + 0.2


def test_short_keys_tell_all_rows_apart_and_mistake_no_more_than_they_may():
    index, draw = index_with([3000, 200, 1], 5), np.random.default_rng(6)
    unknown = draw.integers(0, 2**64, 400_000, dtype=np.uint64)
    for guard in (4, 8):
        short = index.shortened(guard)
        for k, (begin, end) in enumerate(pairwise(index.offsets.tolist())):
            own = short.keys[begin:end]
            assert len({*own.tolist()}) == end - begin
            np.testing.assert_array_equal(own, index.keys[begin:end] & short.masks[k])
            share = np.isin(unknown & short.masks[k], own).mean()
            assert share <= 2.0**-guard
    frequent = np.repeat(index.keys[7:8] ^ np.uint64(1), 1000)  # that differs in its last bit alone
    whole = index.shortened(8, lambda k: frequent)
    assert whole.lengths.tolist()[0] == 64
    assert whole.lengths.tolist()[1:] == index.shortened(8).lengths.tolist()[1:]


def test_damaged_keys_are_told_in_a_sentence():
    index = index_with([50, 7, 30], 1, 9)
    with pytest.raises(UserError, match="tensor keys has 3 bytes, expected"):
        read_again(index, lambda stored: stored[:3])
    with pytest.raises(UserError, match=r"(the keys of a template are|do not ascend)"):
        read_again(index, lambda stored: np.r_[stored[:-9], np.zeros(9, np.uint8)])
    with pytest.raises(UserError, match=r"more than .* symbols need"):
        read_again(index, lambda stored: np.r_[stored, np.ones(20, np.uint8)])
    with pytest.raises(UserError, match="expected bytes"):
        read_again(index, lambda stored: stored.astype(np.int64))


@FEW
@given(st.integers(0, 2**32))
def test_any_bytes_are_keys_or_refused(seed):
    index, draw = index_with([20, 5, 9], 1, 4), np.random.default_rng(seed)
    size = len(packed_keys(index))
    try:
        found = read_again(index, lambda stored: draw.integers(0, 256, size).astype(np.uint8))
    except UserError:
        return
    assert len(found) == 34


# --- words


def test_words_are_read_in_their_order():
    words = ["of", "", "a b", 'say "x"', "line\nend", "größe", "\ud800", "of the"]
    assert packing.unpacked_words({"words": packing.packed_words(words)}, len(words)) == words
    assert packing.unpacked_words({"words": packing.packed_words([])}, 0) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored[:-3], "does not hold 3 words"),
        (lambda stored: np.r_[stored, stored], "does not hold 3 words"),
        (lambda stored: np.zeros(0, np.uint8), "does not hold 3 words"),
        (lambda stored: stored[5:], "cannot be read|does not hold"),
        (lambda stored: packing.packed_words(["a", "b"]), "does not hold 3 words"),
        (lambda stored: packing.packed_words([1, 2, 3]), "does not hold 3 words"),
        (lambda stored: packing.packed_words(["a" * 10**8, "b", "c"]), "does not hold 3 words"),
        (lambda stored: stored.astype(np.float32), "expected bytes"),
    ],
)
def test_damaged_words_are_refused(change, message):
    with pytest.raises(UserError, match=f"tensor words .*({message})"):
        packing.unpacked_words({"words": change(packing.packed_words(["a", "b", "c"]))}, 3)
