"""The command-line program `structsparse`: one module per subcommand, beside the subcommands that tasks declare."""
