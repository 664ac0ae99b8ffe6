"""Planted corpora: drawn from seeded models, so that the relevant features are known."""
