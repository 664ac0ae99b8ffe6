"""Options of the numba compiler that the kernels share: for serial loops, vectorised sums and parallel loops."""

# no checks for division by zero, which would prevent vectorised loops
SERIAL = {"cache": True, "nogil": True, "error_model": "numpy"}
SUMS = {**SERIAL, "fastmath": {"reassoc", "contract"}}  # the compiler may reorder sums, to vectorise them
PARALLEL = {**SERIAL, "parallel": True}  # even an array expression in such a kernel starts all threads
