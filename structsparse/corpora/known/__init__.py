"""Known corpora: corpora with names in the config group `data`, their files, checksums and download addresses."""
