"""Sequence labelling with linear chains: taggers of named entities, chunks and parts of speech."""
