"""Options of the numba compiler that the kernels share: for serial loops, vectorised sums and parallel loops."""

SERIAL = {"cache": True, "nogil": True, "error_model": "numpy"}  # no division checks, so that loops can be vectorised
SUMS = {**SERIAL, "fastmath": {"reassoc", "contract"}}  # the compiler may reorder sums, so that sums can be vectorised
PARALLEL = {**SERIAL, "parallel": True}  # array expressions start all threads, too: use SERIAL for them
