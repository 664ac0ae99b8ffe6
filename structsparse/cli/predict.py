"""The subcommand `structsparse predict`: the help line and the arguments that all tasks share."""

from pathlib import Path

from structsparse.base.commands import OUTPUT, argument

PURPOSE = "tag or parse sentences, score the words of a text, classify documents"
INPUT = "sentences, or documents, one per line (default: standard input)"
ARGUMENTS = (argument("--input", metavar="FILE", type=Path, help=INPUT), OUTPUT)
