"""Corpora: readers of files, corpora known by name, planted corpora; text becomes columns of integer codes."""
