"""Weight tables of features, and their gradients.

A table is complete, grows row by row, or has weights for observed (feature, label) pairs only. A gradient is dense or a
product of two factors."""
