"""What happens around an optimizer step: the prox, the watch on sparsity, the saving."""
