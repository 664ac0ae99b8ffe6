"""Kernels of solvers: quasi-Newton, FISTA, linear and overlapping problems, online sweeps."""
