import platform
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.base.large_arrays import LARGE, cut, room, roomy_zeros
from structsparse.corpora.planted.trees import planted_treebank
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.templates import as_written

PROGRAM = """
import resource, sys
import numpy as np
from structsparse.base.large_arrays import keep_pages
if sys.argv[1] == "kept":
    assert keep_pages()
np.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    np.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_arrays_that_come_and_go_take_no_new_pages():
    def faults(how):
        done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert 20 * faults("kept") < faults("as it is")


@pytest.mark.parametrize("rows", [0, 3, LARGE, 3 * LARGE + 5])
def test_a_roomy_table_is_of_zeros(rows):
    table = roomy_zeros(rows, 1)
    assert (table.shape, table.dtype, int(table.count_nonzero())) == ((rows, 1), torch.float32, 0)
    assert table.is_contiguous()


def test_a_roomy_table_lies_where_it_is_told_to():
    with torch.device("meta"):
        assert roomy_zeros(LARGE, 1).device.type == "meta"


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_room_in_memory_and_in_a_file_is_the_same(share, tmp_path):
    array = room(1000, np.int32, tmp_path / "cache", share)
    assert (array.shape, array.dtype, type(array)) == ((1000,), np.int32, np.ndarray)
    assert (tmp_path / "cache").is_dir() == (share == 0)
    assert list(tmp_path.glob("cache/*")) == []  # the file has no name
    array[:] = np.arange(1000)
    assert cut(array, 10).tolist() == list(range(10))


def test_no_room_for_a_file_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no room for 0\.0 GB .*STRUCTSPARSE_CACHE names another folder"):
        room(1000, np.int32, tmp_path / "file", 0.0)
    with pytest.raises(UserError, match="no room for"):
        room(1 << 56, np.int32, tmp_path)  # more than any disk has


def test_bags_of_arcs_are_the_same_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path))
    trees, templates = planted_treebank(seed=0, train=8, dev=4, test=1), as_written(["h.upos & m.upos", "h.word"])
    index = ArcIndex.fit(trees.train, templates)
    whole = index.bags(trees.dev)
    monkeypatch.setattr("structsparse.tasks.parsing.features.index.room", partial(room, share=0.0))
    mapped = index.bags(trees.dev)
    np.testing.assert_array_equal(mapped.ids, whole.ids)
    np.testing.assert_array_equal(mapped.offsets, whole.offsets)
    assert torch.from_numpy(mapped.ids).tolist() == whole.ids.tolist()
