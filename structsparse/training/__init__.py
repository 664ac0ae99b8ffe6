"""Training of all tasks: runs, penalty terms, callbacks of the trainer, and searches for option values.

A run trains one or several stages, listed in its recipe. Certificates bound how far a fit is from its optimum."""
