"""Tables of weights, held whole, growing or by observed pairs, and the gradients that suit them."""
