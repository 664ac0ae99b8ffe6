"""Dependency parsing: a parser predicts the head of every word, and the relation of the word to the head."""
