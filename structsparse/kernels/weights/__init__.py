"""Kernels of tables of weights: bags of rows, scaled rows, observed pairs, hash tables."""
