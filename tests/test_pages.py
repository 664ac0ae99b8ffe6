import platform
import subprocess
import sys

import pytest
import torch

from structsparse.pages import LARGE, roomy_zeros

PROGRAM = """
import resource, sys
import numpy as np
from structsparse.pages import keep_pages
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
