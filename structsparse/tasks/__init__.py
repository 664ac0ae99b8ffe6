"""The tasks: each folder is one, with the same file names in each. Only `registry` knows them all."""
