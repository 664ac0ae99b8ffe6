"""Corpora: readers of corpus files, corpora known by name, and planted (synthetic) corpora."""
