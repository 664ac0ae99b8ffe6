"""Corpora: readers of corpus files, corpora known by name, and planted corpora, as columns of integer codes."""
