"""Large arrays are the same wherever they lie: on large pages, in memory, in a file."""

from functools import partial

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.base.large_arrays import LARGE, empty_array, shrunk, zeros_on_large_pages
from structsparse.corpora.planted.trees import planted_treebank
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.templates import expand_plain


@pytest.mark.parametrize("rows", [0, 3, LARGE, 3 * LARGE + 5])
def test_a_table_on_large_pages_is_zero(rows):
    table = zeros_on_large_pages(rows, 1)
    assert (table.shape, table.dtype, int(table.count_nonzero())) == ((rows, 1), torch.float32, 0)
    assert table.is_contiguous()


def test_a_table_is_on_the_default_device():
    with torch.device("meta"):
        assert zeros_on_large_pages(LARGE, 1).device.type == "meta"


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_an_array_in_memory_and_one_in_a_file_are_the_same(share, tmp_path):
    array = empty_array(1000, np.int32, tmp_path / "cache", share)
    assert (array.shape, array.dtype, type(array)) == ((1000,), np.int32, np.ndarray)
    assert (tmp_path / "cache").is_dir() == (share == 0)
    assert list(tmp_path.glob("cache/*")) == []  # the file has no name
    array[:] = np.arange(1000)
    assert shrunk(array, 10).tolist() == list(range(10))


def test_a_disk_without_room_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no room for 0\.0 GB .*STRUCTSPARSE_CACHE names another folder"):
        empty_array(1000, np.int32, tmp_path / "file", 0.0)
    with pytest.raises(UserError, match="no room for"):
        empty_array(1 << 56, np.int32, tmp_path)  # larger than any disk


def test_features_of_arcs_in_a_file_are_those_in_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path))
    trees, templates = planted_treebank(seed=0, train=8, dev=4, test=1), expand_plain(["h.upos & m.upos", "h.word"])
    index = ArcIndex.fit(trees.train, templates)
    in_memory = index.bags(trees.dev)
    monkeypatch.setattr("structsparse.tasks.parsing.features.index.empty_array", partial(empty_array, share=0.0))
    mapped = index.bags(trees.dev)
    np.testing.assert_array_equal(mapped.ids, in_memory.ids)
    np.testing.assert_array_equal(mapped.offsets, in_memory.offsets)
    assert torch.from_numpy(mapped.ids).tolist() == in_memory.ids.tolist()
