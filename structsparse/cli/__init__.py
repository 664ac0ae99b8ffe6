"""The command-line program `structsparse`: one module per subcommand; tasks declare the subcommands for their
models."""
