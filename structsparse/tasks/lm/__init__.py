"""Log-linear language models: a weight for every word seen after a context, penalised along the tree of contexts."""
