"""The command-line program `structsparse`: the main function and the subcommands."""
