"""Use of trained parsers."""
