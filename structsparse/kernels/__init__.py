"""CPU kernels in numba; each stands beside a torch twin that runs on any device."""
