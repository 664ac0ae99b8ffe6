"""Lightning callbacks of training: proximal steps, budgets, ADMM, checkpoints, early stopping, logs and progress."""
