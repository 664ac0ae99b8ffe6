"""Weight tables of features, and their gradients: dense, factored, growing row by row, or only for observed (feature,
label) pairs."""
