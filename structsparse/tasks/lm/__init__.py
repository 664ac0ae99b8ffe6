"""Log-linear n-gram language models: a weight for every word seen after a context, penalised along the context tree."""
