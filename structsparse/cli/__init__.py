"""The program `structsparse`: one file per subcommand; subcommands of one task alone come from the registry."""
