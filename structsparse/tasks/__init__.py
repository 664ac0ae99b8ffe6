"""What the program does, by the kind of model; imported once the arguments are understood."""
