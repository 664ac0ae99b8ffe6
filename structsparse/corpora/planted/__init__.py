"""Planted corpora: sentences and documents drawn from seeded models, so that the relevant features are known."""
