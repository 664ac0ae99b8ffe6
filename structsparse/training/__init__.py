"""Training of all tasks: runs, stages of a recipe, penalty terms, optimizer callbacks, certificates and searches."""
