"""The cache: damaged, abandoned, concurrent and evicted entries; keys; limits."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from structsparse.base import cache
from structsparse.base.errors import UserError

ARRAYS = {"small": np.arange(5, dtype=np.int32), "none": np.empty(0, np.int64), "keys": np.arange(900, dtype=np.uint64)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path))
    return tmp_path / "prepared"


def same(arrays, others) -> bool:
    return [*arrays] == [*others] and all(
        np.array_equal(arrays[name], others[name]) and arrays[name].dtype == others[name].dtype for name in arrays
    )


def names() -> list[str]:
    return sorted(path.name for path in cache.folder().iterdir())


# --- keys


def test_a_key_depends_on_options_arrays_and_code(tmp_path):
    code = tmp_path / "code.py"
    code.write_text("one")
    arrays = [np.arange(4), np.zeros(2, np.int32)]
    key = cache.key(["topics", 3], arrays, [code])
    assert key == cache.key(["topics", 3], [array.copy() for array in arrays], [code])
    others = [
        cache.key(["topics", 4], arrays, [code]),
        cache.key(["topics", 3], arrays[::-1], [code]),
        cache.key(["topics", 3], [arrays[0].astype(np.int32), arrays[1]], [code]),
        cache.key(["topics", 3], arrays),
    ]
    code.write_text("two")
    others.append(cache.key(["topics", 3], arrays, [code]))
    assert len({key, *others}) == 6


# --- load_or_make


def test_an_entry_is_computed_once_and_then_loaded(folder):
    calls = []
    make = lambda: calls.append(1) or dict(ARRAYS)  # noqa: E731
    for _ in range(2):
        assert same(cache.load_or_make("key", make, 10), ARRAYS)
    assert (len(calls), names()) == (1, ["key"])
    assert same(cache.load_or_make("key", make, 0), ARRAYS)  # the cache is off
    assert len(calls) == 2


def test_writing_to_loaded_arrays_does_not_change_the_entry():
    cache.store("key", ARRAYS, 10**9)
    cache.load("key")["keys"][:] = 0
    assert same(cache.load("key"), ARRAYS)


def test_a_damaged_entry_is_reported_and_replaced(folder):
    cache.store("key", ARRAYS, 10**9)
    data = (folder / "key").read_bytes()
    (folder / "key").write_bytes(data[:100])
    with pytest.warns(UserWarning, match="key is damaged .* computed again"):
        assert same(cache.load_or_make("key", lambda: dict(ARRAYS), 10), ARRAYS)
    assert (folder / "key").read_bytes() == data


def test_a_cache_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "file"))
    notes = []
    assert same(cache.load_or_make("key", lambda: dict(ARRAYS), 10, notes.append), ARRAYS)
    assert len(notes) == 1
    assert "file/prepared cannot be written (" in notes[0]


@pytest.mark.parametrize("size", [True, -1, None, "many", 1.5])
def test_a_limit_that_is_no_number_of_megabytes_is_refused(size):
    with pytest.raises(UserError, match=f"cache is {size}, expected how many megabytes"):
        cache.load_or_make("key", lambda: dict(ARRAYS), size)


# --- files


def test_every_flipped_bit_is_detected():
    cache.store("key", ARRAYS, 10**9)
    path = cache.folder() / "key"
    data = path.read_bytes()
    description = json.loads(data[9 : data.index(b"\n")])
    first_line = range(data.index(b"\n") + 1)
    begin = len(data) - description["bytes"]
    used = [range(begin + at, begin + at + 4 * n) for _, n, at, _ in description["arrays"].values()]
    for place in {*first_line, *(k for places in used for k in places[:: max(1, len(places) // 20)])}:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(cache.Damaged):
            cache.load("key")
        assert not path.exists()


def test_a_killed_writer_leaves_no_entry_and_its_temporary_file_is_removed_later():
    child = os.fork()
    if child == 0:
        cache._write = lambda file, arrays: (file.write(b"half"), file.flush(), os._exit(9))
        cache.store("key", ARRAYS, 10**9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (temporary,) = cache.folder().iterdir()
    assert temporary.name.startswith(".")
    assert cache.load("key") is None
    cache.store("key", ARRAYS, 10**9)
    assert temporary.exists()  # its writer may still be at work
    os.utime(temporary, (1, 1))
    cache.store("key", ARRAYS, 10**9)
    assert names() == ["key"]


def test_concurrent_readers_and_writers_see_complete_entries_only():
    """Writers of one key and of others, under a limit that makes them evict each other's entries."""
    size, errors = sum(array.nbytes for array in ARRAYS.values()), []

    def work(number: int) -> None:
        try:
            for turn in range(60):
                cache.store("shared" if turn % 3 else f"thread{number}", ARRAYS, 3 * size)
                arrays = cache.load("shared")
                if arrays is not None and not same(arrays, ARRAYS):
                    errors.append("other contents")
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_the_least_recently_used_entries_are_evicted_first():
    cache.store("a", ARRAYS, 10**9)
    size = Path(cache.folder() / "a").stat().st_size
    cache.store("b", ARRAYS, 10**9)
    cache.store("c", ARRAYS, 10**9)
    for age, name in enumerate("cba"):
        os.utime(cache.folder() / name, (1000 - age, 1000 - age))
    cache.load("a")  # used now
    cache.store("d", ARRAYS, 3 * size)
    assert names() == ["a", "c", "d"]
    cache.store("e", ARRAYS, size)
    assert names() == ["e"]
    cache.store("f", ARRAYS, 100)  # larger than the limit
    assert names() == ["e"]
