"""Text to columns of codes: readers, known corpora, planted corpora."""
