"""Weight tables of features, and their gradients.

Gradients are dense or factored. Tables are complete, or grow row by row, or hold only observed (feature, label) pairs.
"""
