"""numba compiler options that the kernels share: for serial loops, vectorised sums and parallel loops."""

SERIAL = {"cache": True, "nogil": True, "error_model": "numpy"}  # unchecked divisions, so that loops are vectorised
SUMS = {**SERIAL, "fastmath": {"reassoc", "contract"}}  # sums in any order, so that they are vectorised
PARALLEL = {**SERIAL, "parallel": True}  # array expressions start all threads too: keep them in SERIAL code
