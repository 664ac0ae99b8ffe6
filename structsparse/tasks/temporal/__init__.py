"""Models whose coefficients drift in time: each feature has a chain of weights, with a smoothness of its own.

They forecast a number or class from dated texts, or the words of the next period."""
