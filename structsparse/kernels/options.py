"""Options of the numba compiler that the kernels share: for serial loops, vectorised sums and parallel loops."""

SERIAL = {"cache": True, "nogil": True, "error_model": "numpy"}  # no division checks, so that loops can be vectorised
SUMS = {**SERIAL, "fastmath": {"reassoc", "contract"}}  # the compiler may reorder sums, to vectorise them
PARALLEL = {**SERIAL, "parallel": True}  # here, even an array expression starts all threads
