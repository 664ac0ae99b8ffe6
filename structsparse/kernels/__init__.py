"""CPU kernels in numba; each kernel has a torch counterpart that runs on any device."""
