"""Cached features: the same as prepared ones, and found again exactly if nothing that decides them has changed."""

from dataclasses import replace

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column
from structsparse.corpora.known.tagging import planted
from structsparse.features import prepared
from structsparse.features.filters import all_of
from structsparse.features.prepared import indexed
from structsparse.tasks.parsing.data import prepare as prepare_parsing
from structsparse.tasks.parsing.features import templates as arc_templates
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.tagging.data import prepare
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import expand
from tests.support import parsers

TEMPLATES = expand(["1-2-grams of word[-1..1]", "suffix2[0] & pos[-1]"])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path))
    monkeypatch.setattr(prepared, "WORTH", 0)
    return tmp_path / "prepared"


@pytest.fixture(scope="module")
def parts():
    return planted(3, 40, 10, 10).parts


@pytest.fixture
def fits(monkeypatch):
    """One entry for each time that features were prepared."""
    calls, make = [], prepared._made
    monkeypatch.setattr(prepared, "_made", lambda *inputs: calls.append(1) or make(*inputs))
    return calls


def equal(left, right) -> bool:
    (index, bags, _), (other, other_bags, _) = left, right
    if [*bags] != [*other_bags]:
        return False
    pairs = [(index.offsets, other.offsets), (index.keys, other.keys), (index.rows, other.rows)]
    for part, rows in bags.items():
        pairs += [(rows.ids, other_bags[part].ids), (rows.offsets, other_bags[part].offsets)]
    same = all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    return same and index.templates == other.templates


# --- features of tokens


def test_features_are_prepared_once_and_then_loaded(parts, fits, folder):
    first = indexed(parts, TEMPLATES, 1, 10, TokenIndex)
    assert equal(first, indexed(parts, TEMPLATES, 1, 10, TokenIndex))
    assert equal(first, indexed(parts, TEMPLATES, 1, 0, TokenIndex))  # the cache is off
    assert (len(fits), len(list(folder.iterdir()))) == (2, 1)


def test_training_data_from_cached_features_are_those_from_prepared_ones(fits):
    splits, lines = planted(3, 40, 10, 10), [template.name for template in TEMPLATES]
    prepared_data, cached = (prepare(splits, lines, cache=10) for _ in range(2))
    assert len(fits) == 1
    assert prepared_data.notes == cached.notes
    alive = np.arange(len(cached.index)) % 2 == 0
    for one, other in ((prepared_data, cached), (prepared_data.keep(alive), cached.keep(alive))):
        for part, arrays in one.arrays.items():
            assert np.array_equal(arrays.bags.ids, other.arrays[part].bags.ids)
            assert np.array_equal(arrays.gold, other.arrays[part].gold)


def test_writing_to_cached_features_changes_nothing_for_later_runs(parts):
    first = indexed(parts, TEMPLATES, 1, 10, TokenIndex)
    index, bags, _ = indexed(parts, TEMPLATES, 1, 10, TokenIndex)
    index.keys[:] = 0
    bags["train"].ids[:] = 0
    assert equal(first, indexed(parts, TEMPLATES, 1, 10, TokenIndex))


def test_small_corpora_are_not_cached(parts, monkeypatch, folder):
    monkeypatch.setattr(prepared, "WORTH", 10**9)
    indexed(parts, TEMPLATES, 1, 10, TokenIndex)
    assert not folder.exists()


def changed(column: Column, token: int, value: str) -> Column:
    strings = column.strings()
    return Column.from_strings([*strings[:token], value, *strings[token + 1 :]])


def renamed(sentences) -> Column:
    column = sentences.columns["pos"]
    return replace(column, values=["x", "y", *column.values[2:]])


def with_word(parts, part):
    return {**parts, part: parts[part].with_column("word", changed(parts[part].columns["word"], 7, "strange"))}


CHANGES = {
    "a word of train": lambda p, t: (with_word(p, "train"), t, 1),
    "a word of dev": lambda p, t: (with_word(p, "dev"), t, 1),
    "a word of test": lambda p, t: (with_word(p, "test"), t, 1),
    "a part of speech": lambda p, t: (
        {**p, "train": p["train"].with_column("pos", changed(p["train"].columns["pos"], 7, "strange"))}, t, 1,
    ),
    "what a code stands for": lambda p, t: ({**p, "dev": p["dev"].with_column("pos", renamed(p["dev"]))}, t, 1),
    "where a sentence ends": lambda p, t: (
        {**p, "train": replace(p["train"], offsets=np.r_[0, p["train"].offsets[1] - 1, p["train"].offsets[2:]])}, t, 1,
    ),
    "the order of sentences": lambda p, t: ({**p, "train": p["train"].select(slice(None, None, -1))}, t, 1),
    "a sentence less": lambda p, t: ({**p, "train": p["train"].select(slice(1, None))}, t, 1),
    "a part less": lambda p, t: ({name: part for name, part in p.items() if name != "dev"}, t, 1),
    "parts exchanged": lambda p, t: ({**p, "dev": p["test"], "test": p["dev"]}, t, 1),
    "a template less": lambda p, t: (p, t[1:], 1),
    "the order of templates": lambda p, t: (p, t[::-1], 1),
    "another template": lambda p, t: (p, [*t[:-1], *expand(["suffix2[0] & pos[1]"])], 1),
    "the least count": lambda p, t: (p, t, 2),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_every_input_that_changes_the_features_changes_the_key(change, parts, fits):
    first = indexed(parts, TEMPLATES, 1, 10, TokenIndex)
    inputs = CHANGES[change](dict(parts), list(TEMPLATES))
    second = indexed(*inputs, 10, TokenIndex)
    assert len(fits) == 2
    assert not equal(first, second)  # or the change would be none
    assert equal(second, indexed(*inputs, 0, TokenIndex))


@pytest.mark.parametrize("kind", [TokenIndex, ArcIndex])
def test_another_version_of_the_code_is_another_key(kind, tmp_path, monkeypatch):
    treebank = {"train": parsers.corpus().train}
    key, files = prepared._key(treebank, [], 1, kind), kind.code_files()
    assert len({*files}) == len(files) > 4
    for k, path in enumerate(files):
        changed_file = tmp_path / "other.py"
        changed_file.write_bytes(path.read_bytes() + b"\n# changed\n")
        replaced = (*files[:k], changed_file, *files[k + 1 :])
        monkeypatch.setattr(kind, "code_files", lambda replaced=replaced: replaced)
        assert prepared._key(treebank, [], 1, kind) != key


def test_a_key_is_the_same_in_every_process_and_ignores_unused_columns(parts):
    key = prepared._key(parts, TEMPLATES, 1, TokenIndex)
    tags = {name: part.with_column("tag", Column.from_strings(["O"] * part.tokens)) for name, part in parts.items()}
    assert prepared._key(tags, TEMPLATES, 1, TokenIndex) == key
    assert prepared._key(planted(3, 40, 10, 10).parts, TEMPLATES, 1, TokenIndex) == key


# --- features of arcs


def as_arrays(result) -> list[np.ndarray]:
    index, bags, _ = result
    of_parts = [array for rows in bags.values() for array in (rows.ids, rows.offsets)]
    return [index.offsets, index.keys, index.rows, index.masks, *of_parts]


def test_features_of_arcs_are_cached_by_the_bits_of_their_keys(fits, folder):
    parts, templates = parsers.corpus().parts, arc_templates.expand(["h.word & m.upos", "bias"], ["plain", "distance"])
    results = [indexed(parts, templates, 1, 10, ArcIndex, bits=bits) for bits in (64, 64, 12, 12)]
    assert (len(fits), len(list(folder.iterdir()))) == (2, 2)
    for made, cached in (results[:2], results[2:]):
        assert all(
            np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(*map(as_arrays, (made, cached)), strict=True)
        )
    assert len(results[2][0]) < len(results[0][0])
    heads = {name: part.with_column("head", part.columns["upos"]) for name, part in parts.items()}
    assert prepared._key(heads, templates, 1, ArcIndex) == prepared._key(parts, templates, 1, ArcIndex)
    other = {**parts, "dev": parts["dev"].with_column("upos", changed(parts["dev"].columns["upos"], 3, "X"))}
    assert prepared._key(other, templates, 1, ArcIndex) != prepared._key(parts, templates, 1, ArcIndex)


def test_a_parser_uses_the_cache_unless_a_filter_has_chosen_its_templates(fits, folder):
    splits, options = parsers.corpus(), {"projective": False, "single_root": False}
    made, cached = (prepare_parsing(splits, parsers.FEATURES, all_of, 10, **options) for _ in range(2))
    for part in ("train", "dev", "test"):
        one, other = made.arrays[part].bags, cached.arrays[part].bags
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.offsets, other.offsets)
    assert np.array_equal(made.index.keys, cached.index.keys)
    assert len(fits) == 1
    fewer = prepare_parsing(splits, parsers.FEATURES, lambda candidates: (candidates.templates[:3], []), 10, **options)
    assert len(fewer.index.templates) == 3
    assert len(list(folder.iterdir())) == 1
    with pytest.raises(UserError, match="cache is -1, expected how many megabytes"):
        prepare_parsing(splits, parsers.FEATURES, all_of, -1, **options)


def test_a_damaged_entry_of_a_treebank_is_reported(folder):
    splits, options = parsers.corpus(), {"projective": False, "single_root": False}
    first = prepare_parsing(splits, parsers.FEATURES, all_of, 10, **options).index
    path, data = one_entry(folder)
    path.write_bytes(data[:100])
    with pytest.warns(RuntimeWarning, match="is damaged .* computed again"):
        assert np.array_equal(prepare_parsing(splits, parsers.FEATURES, all_of, 10, **options).index.keys, first.keys)


# --- damaged and read-only caches


def one_entry(folder) -> tuple:
    (path,) = folder.iterdir()
    return path, path.read_bytes()


def damage(data: bytes) -> list[bytes]:
    """The bytes truncated, with one bit flipped, and with other bytes added."""
    truncated = [data[:size] for size in (0, 1, 8, 9, 50, len(data) // 2, len(data) - 1)]
    flipped = [data[:k] + bytes([data[k] ^ 4]) + data[k + 1 :] for k in (0, 10, 60, len(data) // 2, len(data) - 1)]
    return [*truncated, *flipped, data + b"more", b"\n" + data, b"[]\n", b"{}"]


def test_every_damage_is_detected_reported_in_one_line_and_repaired(parts, folder):
    first = indexed(parts, TEMPLATES, 1, 10, TokenIndex)
    path, data = one_entry(folder)
    for damaged in damage(data):
        path.write_bytes(damaged)
        again = indexed(parts, TEMPLATES, 1, 10, TokenIndex)
        assert equal(first, again)
        (note,) = again[2]
        assert note.startswith(f"cache: {path} is damaged (")
        assert "\n" not in note
        assert one_entry(folder) == (path, data)
        assert indexed(parts, TEMPLATES, 1, 10, TokenIndex)[2] == []


def test_without_a_writable_cache_features_are_prepared_and_a_note_says_so(parts, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "file"))
    result = indexed(parts, TEMPLATES, 1, 10, TokenIndex)
    assert equal(result, indexed(parts, TEMPLATES, 1, 0, TokenIndex))
    assert len(result[2]) == 1
    assert "file/prepared cannot be written (" in result[2][0]


def test_a_cache_limit_that_is_no_number_is_refused(parts):
    with pytest.raises(UserError, match="cache is True, expected how many megabytes"):
        indexed(parts, TEMPLATES, 1, True, TokenIndex)
