"""Kept memory: arrays that are freed and allocated again take no new pages from the kernel."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from structsparse.base.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
np.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    np.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_arrays_that_come_and_go_take_no_new_pages():
    def page_faults(how):
        done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert 20 * page_faults("kept") < page_faults("default")
