"""Known corpora, by the names of the config group `data`: files, checksums, download addresses, and parts."""
