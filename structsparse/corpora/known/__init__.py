"""Corpora by the names of the config group `data`: their files, checksums, public homes, and parts."""
