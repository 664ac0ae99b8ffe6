"""Tables of weights in an artifact: decoded exactly, in few bytes, and refused when damaged."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse.artifacts import tables
from structsparse.artifacts.coding import encode_symbols
from structsparse.artifacts.tables import decode_table, encode_table, step_of
from structsparse.base.errors import UserError

FEW = settings(max_examples=60)
VALUES = {
    "any": lambda draw, shape: draw.normal(size=shape),
    "multiples": lambda draw, shape: draw.integers(-31, 32, shape) * np.float32(0.09375),
    "few": lambda draw, shape: draw.choice([0.1, -0.1, 0.7, 1e-30], shape),
    "forbidden": lambda draw, shape: draw.choice([-np.inf, 0.5, 3.0], shape),
    "one": lambda draw, shape: np.full(shape, -0.3),
}


@FEW
@given(st.sampled_from([*VALUES]), st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 40), st.booleans())
def test_a_decoded_table_is_the_one_that_was_encoded(kind, seed, rows, labels, repeated):
    draw = np.random.default_rng(seed)
    table = VALUES[kind](draw, (rows, labels)).astype(np.float32) * np.float32(1)
    table[draw.random((rows, labels)) < draw.random()] = 0
    if repeated and rows:
        table = table[draw.integers(0, min(3, rows), rows)]
    for original in (table, np.ascontiguousarray(table[:, 0])):
        tensors = encode_table("x", original)
        assert sum(a.nbytes for a in tensors.values()) <= original.nbytes
        decoded = decode_table(tensors, "x", original.shape)
        assert not tensors
        assert decoded.dtype == np.float32
        np.testing.assert_array_equal(decoded, original)


@pytest.mark.parametrize("shape", [(20_000,), (20_000, 1), (10_000, 2)])
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_skipping_codes_for_too_many_values_changes_no_byte(shape, zeros, monkeypatch):
    random = np.random.default_rng(0)
    table = np.where(random.random(shape) < zeros, 0, random.standard_normal(shape)).astype(np.float32)
    tensors = encode_table("w", table)
    monkeypatch.setattr(tables, "_too_many", lambda values: False)
    expected = encode_table("w", table)
    assert {*tensors} == {*expected}
    assert all(np.array_equal(tensors[name], expected[name]) for name in tensors)
    np.testing.assert_array_equal(decode_table(tensors, "w", shape), table)


def test_few_values_cost_few_bits_and_equal_rows_little():
    draw = np.random.default_rng(0)
    table = (draw.integers(-3, 4, (4000, 8)) * (draw.random((4000, 8)) < 0.2) * 0.25).astype(np.float32)
    entries = np.count_nonzero(table)
    tensors = encode_table("x", table)
    assert tensors["x.step"] == 0.25
    assert tensors["x.codes"].nbytes * 8 < 2.7 * entries  # log2 6 is 2.58
    again = table[draw.integers(0, 30, 4000)]
    tensors = encode_table("x", again)
    assert tensors["x.rows"].nbytes * 8 < 5.1 * 4000  # log2 30 is 4.91
    assert sum(a.nbytes for name, a in tensors.items() if name != "x.rows") < 300
    assert "x.rows" not in encode_table("x", table)


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
    assert step_of(np.array(values, np.float32)) == (None if step is None else np.float32(step))


def damaged(change) -> dict:
    draw = np.random.default_rng(1)
    table = (draw.integers(-9, 10, (60, 6)) * (draw.random((60, 6)) < 0.3) * 0.5).astype(np.float32)
    tensors = encode_table("x", table)
    assert sorted(tensors) == ["x.codes", "x.counts", "x.labels", "x.step"]
    return change(tensors, np.count_nonzero(table, axis=1))


def labels_of(tensors, counts, label: int):
    """Every entry of every row gets the same label."""
    contexts, chained, width = tables._label_contexts(counts, 6)
    return tensors | {"x.labels": encode_symbols(np.full(len(contexts), label), width, contexts, chained)}


def longer(name):
    return lambda tensors, counts: tensors | {name: np.r_[tensors[name], np.full(9, 7, np.uint8)]}


def without(name):
    return lambda tensors, counts: {key: value for key, value in tensors.items() if key != name}


FAULTS = {
    "count too large": (
        lambda t, c: t | {"x.counts": encode_symbols(np.full(60, 7), 3)},
        "counts holds 7, expected 0 to 6",
    ),
    "label too large": (lambda t, c: labels_of(t, c, 7), "labels holds 7, expected 0 to 5, one of 6 labels"),
    "label twice": (lambda t, c: labels_of(t, c, 5), "labels does not ascend within every row"),
    "counts too long": (longer("x.counts"), "counts has .* more than 60 symbols need"),
    "labels too long": (longer("x.labels"), "labels has .* bytes, more than"),
    "codes too long": (longer("x.codes"), "codes has .* bytes, more than"),
    "codes too wide": (
        lambda t, c: t | {"x.codes": np.array([60], np.uint8)},
        "does not begin with the number",
    ),
    "no codes at all": (lambda t, c: t | {"x.codes": np.zeros(0, np.uint8)}, "does not begin with the number"),
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
def test_damaged_tables_are_refused_in_a_sentence(case):
    change, message = FAULTS[case]
    with pytest.raises(UserError, match=message):
        decode_table(damaged(change), "x", (60, 6))


@FEW
@given(st.integers(0, 2**32), st.sampled_from(["x.codes", "x.counts", "x.labels"]))
def test_random_bytes_are_a_table_or_refused(seed, name):
    draw = np.random.default_rng(seed)
    noise = draw.integers(0, 256, draw.integers(0, 60)).astype(np.uint8)
    try:
        table = decode_table(damaged(lambda t, c: t | {name: noise}), "x", (60, 6))
    except UserError:
        return
    assert table.shape == (60, 6)
