"""Known corpora, which the config group `data` names: for each corpus, its files, checksums and download addresses."""
