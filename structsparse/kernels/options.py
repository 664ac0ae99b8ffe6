"""Compiler options that the kernels share: serial loops, sums as vectors, parallel loops."""

SERIAL = {"cache": True, "nogil": True, "error_model": "numpy"}  # unchecked divisions, so that loops become vectors
SUMS = {**SERIAL, "fastmath": {"reassoc", "contract"}}  # sums in any order, so that they become vectors
PARALLEL = {**SERIAL, "parallel": True}  # also wakes all threads for array expressions: keep those in serial functions
