"""Planted corpora: drawn from seeded models of which the relevant features are known."""
