"""Prepared corpora are found again by all that they were made from, and by nothing less; whatever befalls the files."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from structsparse.base import cache
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column
from structsparse.corpora.splits import planted
from structsparse.features import prepared
from structsparse.features.information import all_of
from structsparse.features.prepared import indexed
from structsparse.tasks.parsing.data import prepare as prepare_parsing
from structsparse.tasks.parsing.features import templates as arc_templates
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.tagging.data import prepare
from structsparse.tasks.tagging.features.templates import expand
from tests.support import parsers

TEMPLATES = expand(["1-2-grams of word[-1..1]", "suffix2[0] & pos[-1]"])
ARRAYS = {"small": np.arange(5, dtype=np.int32), "none": np.empty(0, np.int64), "keys": np.arange(900, dtype=np.uint64)}


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
    """How often an index has been made."""
    made, make = [], prepared._made
    monkeypatch.setattr(prepared, "_made", lambda *inputs: made.append(1) or make(*inputs))
    return made


def equal(left, right) -> bool:
    (index, bags, _), (other, its_bags, _) = left, right
    if [*bags] != [*its_bags]:
        return False
    pairs = [(index.offsets, other.offsets), (index.keys, other.keys), (index.rows, other.rows)]
    for part, own in bags.items():
        pairs += [(own.ids, its_bags[part].ids), (own.offsets, its_bags[part].offsets)]
    same = all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    return same and index.templates == other.templates


# --- what is found again


def test_the_second_time_it_is_not_made_but_found(parts, fits, folder):
    first = indexed(parts, TEMPLATES, 1, 10)
    assert equal(first, indexed(parts, TEMPLATES, 1, 10))
    assert equal(first, indexed(parts, TEMPLATES, 1, 0))  # made, and neither looked for nor kept
    assert (len(fits), len(list(folder.iterdir()))) == (2, 1)


def test_a_run_learns_from_what_was_found_as_from_what_was_made(fits):
    splits, lines = planted(3, 40, 10, 10), [template.name for template in TEMPLATES]
    made, found = (prepare(splits, lines, cache=10) for _ in range(2))
    assert len(fits) == 1
    assert made.notes == found.notes
    alive = np.arange(len(found.index)) % 2 == 0
    for one, other in ((made, found), (made.keep(alive), found.keep(alive))):
        for part, arrays in one.arrays.items():
            assert np.array_equal(arrays.bags.ids, other.arrays[part].bags.ids)
            assert np.array_equal(arrays.gold, other.arrays[part].gold)


def test_writing_to_what_was_found_changes_nothing_for_others(parts):
    first = indexed(parts, TEMPLATES, 1, 10)
    found = indexed(parts, TEMPLATES, 1, 10)
    found[0].keys[:] = 0
    found[1]["train"].ids[:] = 0
    assert equal(first, indexed(parts, TEMPLATES, 1, 10))


def test_small_corpora_are_made_faster_than_they_are_found(parts, monkeypatch, folder):
    monkeypatch.setattr(prepared, "WORTH", 10**9)
    indexed(parts, TEMPLATES, 1, 10)
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
    "a part less": lambda p, t: ({name: own for name, own in p.items() if name != "dev"}, t, 1),
    "parts exchanged": lambda p, t: ({**p, "dev": p["test"], "test": p["dev"]}, t, 1),
    "a template less": lambda p, t: (p, t[1:], 1),
    "the order of templates": lambda p, t: (p, t[::-1], 1),
    "another template": lambda p, t: (p, [*t[:-1], *expand(["suffix2[0] & pos[1]"])], 1),
    "the least count": lambda p, t: (p, t, 2),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_the_outcome_changes_the_key(change, parts, fits):
    first = indexed(parts, TEMPLATES, 1, 10)
    inputs = CHANGES[change](dict(parts), list(TEMPLATES))
    second = indexed(*inputs, 10)
    assert len(fits) == 2
    assert not equal(first, second)  # or it would be no change
    assert equal(second, indexed(*inputs, 0))


@pytest.mark.parametrize("module", range(len(prepared._CODE)))
def test_other_code_is_another_key(module, parts, tmp_path, monkeypatch):
    before = prepared._key(parts, TEMPLATES, 1)
    code = prepared._CODE[module]
    (tmp_path / "other.py").write_bytes(Path(code.__file__).read_bytes() + b"\n# changed\n")
    other = type("Module", (), {"__file__": str(tmp_path / "other.py")})
    monkeypatch.setattr(prepared, "_CODE", (*prepared._CODE[:module], other, *prepared._CODE[module + 1 :]))
    assert prepared._key(parts, TEMPLATES, 1) != before


def test_the_key_is_the_same_in_another_process_and_whatever_else_the_columns_hold(parts):
    key = prepared._key(parts, TEMPLATES, 1)
    tags = {name: own.with_column("tag", Column.from_strings(["O"] * own.tokens)) for name, own in parts.items()}
    assert prepared._key(tags, TEMPLATES, 1) == key == prepared._key(planted(3, 40, 10, 10).parts, TEMPLATES, 1)


# --- arcs


def as_arrays(found) -> list[np.ndarray]:
    index, bags, _ = found
    of_parts = [array for own in bags.values() for array in (own.ids, own.offsets)]
    return [index.offsets, index.keys, index.rows, index.masks, *of_parts]


def test_features_of_arcs_are_found_again_with_as_many_bits(fits, folder):
    parts, templates = parsers.corpus().parts, arc_templates.expand(["h.word & m.upos", "bias"], ["plain", "distance"])
    found = [indexed(parts, templates, 1, 10, ArcIndex, bits=bits) for bits in (64, 64, 12, 12)]
    assert (len(fits), len(list(folder.iterdir()))) == (2, 2)
    for made, again in (found[:2], found[2:]):
        assert all(
            np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(*map(as_arrays, (made, again)), strict=True)
        )
    assert len(found[2][0]) < len(found[0][0])
    heads = {name: own.with_column("head", own.columns["upos"]) for name, own in parts.items()}
    assert prepared._key(heads, templates, 1, ArcIndex) == prepared._key(parts, templates, 1, ArcIndex)
    with_other = {**parts, "dev": parts["dev"].with_column("upos", changed(parts["dev"].columns["upos"], 3, "X"))}
    assert prepared._key(with_other, templates, 1, ArcIndex) != prepared._key(parts, templates, 1, ArcIndex)


def test_a_parser_begins_with_what_was_found_unless_its_templates_were_chosen(fits, folder):
    splits, how = parsers.corpus(), {"projective": False, "single_root": False}
    made, found = (prepare_parsing(splits, parsers.FEATURES, all_of, 10, **how) for _ in range(2))
    for part in ("train", "dev", "test"):
        one, other = made.arrays[part].bags, found.arrays[part].bags
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.offsets, other.offsets)
    assert np.array_equal(made.index.keys, found.index.keys)
    assert len(fits) == 1
    fewer = prepare_parsing(splits, parsers.FEATURES, lambda part, tag, kept: (kept[:3], []), 10, **how)
    assert len(fewer.index.templates) == 3
    assert len(list(folder.iterdir())) == 1
    with pytest.raises(UserError, match="cache is -1, expected how many megabytes"):
        prepare_parsing(splits, parsers.FEATURES, all_of, -1, **how)


def test_a_damaged_entry_of_a_treebank_is_told(folder):
    splits, how = parsers.corpus(), {"projective": False, "single_root": False}
    first = prepare_parsing(splits, parsers.FEATURES, all_of, 10, **how).index
    path, data = one_entry(folder)
    path.write_bytes(data[:100])
    with pytest.warns(RuntimeWarning, match="is damaged .* prepared anew"):
        assert np.array_equal(prepare_parsing(splits, parsers.FEATURES, all_of, 10, **how).index.keys, first.keys)


# --- what befalls the files


def one_entry(folder) -> tuple:
    (path,) = folder.iterdir()
    return path, path.read_bytes()


def damage(data: bytes) -> list[bytes]:
    """Cut short at many places, and with one bit turned at many."""
    cuts = [data[:size] for size in (0, 1, 8, 9, 50, len(data) // 2, len(data) - 1)]
    turned = [data[:k] + bytes([data[k] ^ 4]) + data[k + 1 :] for k in (0, 10, 60, len(data) // 2, len(data) - 1)]
    return [*cuts, *turned, data + b"more", b"\n" + data, b"[]\n", b"{}"]


def test_every_damage_is_noticed_said_in_one_line_and_mended(parts, folder):
    first = indexed(parts, TEMPLATES, 1, 10)
    path, data = one_entry(folder)
    for damaged in damage(data):
        path.write_bytes(damaged)
        again = indexed(parts, TEMPLATES, 1, 10)
        assert equal(first, again)
        (note,) = again[2]
        assert note.startswith(f"cache: {path} is damaged (")
        assert "\n" not in note
        assert one_entry(folder) == (path, data)
        assert indexed(parts, TEMPLATES, 1, 10)[2] == []


def test_every_bit_is_under_a_checksum():
    cache.store("key", ARRAYS, 10**9)
    path = cache.folder() / "key"
    data = path.read_bytes()
    described = json.loads(data[9 : data.index(b"\n")])
    first_line = range(data.index(b"\n") + 1)
    begin = len(data) - described["bytes"]
    used = [range(begin + at, begin + at + 4 * n) for _, n, at, _ in described["arrays"].values()]
    for place in {*first_line, *(k for places in used for k in places[:: max(1, len(places) // 20)])}:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(cache.Damaged):
            cache.load("key")
        assert not path.exists()


def test_a_writer_that_is_killed_leaves_no_entry_and_is_cleaned_up_after(monkeypatch):
    child = os.fork()
    if child == 0:
        cache._write = lambda file, arrays: (file.write(b"half"), file.flush(), os._exit(9))
        cache.store("key", ARRAYS, 10**9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (left,) = cache.folder().iterdir()
    assert left.name.startswith(".")
    assert cache.load("key") is None
    cache.store("key", ARRAYS, 10**9)
    assert left.exists()  # it may belong to somebody at work
    os.utime(left, (1, 1))
    cache.store("key", ARRAYS, 10**9)
    assert [path.name for path in cache.folder().iterdir()] == ["key"]


def test_readers_and_writers_at_once_see_whole_entries_only():
    """Writers of one key and of others, under a limit that makes them remove each other's."""
    size, wrong = sum(array.nbytes for array in ARRAYS.values()), []

    def work(number: int) -> None:
        try:
            for turn in range(60):
                cache.store("shared" if turn % 3 else f"own{number}", ARRAYS, 3 * size)
                found = cache.load("shared")
                if found is not None and not all(np.array_equal(found[name], ARRAYS[name]) for name in ARRAYS):
                    wrong.append("other contents")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_was_used_the_longest_ago_goes_first():
    cache.store("a", ARRAYS, 10**9)
    size = (cache.folder() / "a").stat().st_size
    cache.store("b", ARRAYS, 10**9)
    cache.store("c", ARRAYS, 10**9)
    for age, name in enumerate("cba"):
        os.utime(cache.folder() / name, (1000 - age, 1000 - age))
    cache.load("a")  # used now
    cache.store("d", ARRAYS, 3 * size)
    assert sorted(path.name for path in cache.folder().iterdir()) == ["a", "c", "d"]
    cache.store("e", ARRAYS, size)
    assert [path.name for path in cache.folder().iterdir()] == ["e"]
    cache.store("f", ARRAYS, 100)  # larger than all that may be kept
    assert [path.name for path in cache.folder().iterdir()] == ["e"]


def test_where_nothing_can_be_written_the_run_goes_on_and_says_so(parts, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "file"))
    found = indexed(parts, TEMPLATES, 1, 10)
    assert equal(found, indexed(parts, TEMPLATES, 1, 0))
    assert len(found[2]) == 1
    assert "file/prepared cannot be written (" in found[2][0]


@pytest.mark.parametrize("size", [True, -1, None, "many", 1.5])
def test_a_size_that_is_none_is_refused(size, parts):
    with pytest.raises(UserError, match=f"cache is {size}, expected how many megabytes"):
        indexed(parts, TEMPLATES, 1, size)
