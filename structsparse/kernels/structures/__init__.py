"""Kernels of structures: chains, dependency trees, trees of contexts."""
