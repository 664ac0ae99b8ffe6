"""The subcommand `structsparse evaluate`: the help line and the arguments that all tasks share."""

from pathlib import Path

from structsparse.base.commands import argument

PURPOSE = "score a model on tagged sentences, a treebank, a text, labelled documents or word pairs"
FILES = "tagged sentences, a treebank, a text, labelled documents, or word pairs"
ARGUMENTS = (
    argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="?",  # a task without known data of its own refuses to go without it
        help=f"{FILES}; may be left out for word vectors",
    ),
    argument("--json", action="store_true", help="print one JSON object instead of a table"),
)
