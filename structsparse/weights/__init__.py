"""Weight tables of features, and their gradients.

There are complete tables, tables that grow row by row, and tables for observed (feature, label) pairs only. A gradient
is dense or a product of two factors."""
