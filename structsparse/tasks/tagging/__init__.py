"""Sequence labelling: named entities, chunks, parts of speech."""
