"""Kernels of optimisers: quasi-Newton, FISTA, proximal Newton for linear models, and online learning."""
