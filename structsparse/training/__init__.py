"""One file a task: its data, its Lightning module, its metric."""
