"""Log-linear n-gram language models, with one weight for each pair of a context and a next word.

The penalties group the weights along a tree of contexts."""
