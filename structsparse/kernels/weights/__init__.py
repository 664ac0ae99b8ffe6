"""Kernels of weight tables: sums and updates of rows, scaled groups, observed (feature, label) pairs, hash tables."""
