"""Dependency parsing: the head of every word, and the relation between the two."""
