"""Scores to the best structure, the log-partition and the marginals."""
