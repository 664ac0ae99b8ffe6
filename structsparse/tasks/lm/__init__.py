"""Log-linear n-gram language models, with one weight for each pair of a context and a next word.

A context is the sequence of words before the next word. Penalties group the weights along a tree of contexts."""
