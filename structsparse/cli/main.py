"""The entry point of the program `structsparse`: parses the command line and runs a subcommand.

Heavy modules are imported after the arguments are parsed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from structsparse.base.errors import UserError
from structsparse.base.version import VERSION
from structsparse.cli import models, train

DESCRIPTION = "Train structured predictors under group-sparsity penalties, and use the trained models."
EXAMPLES = """\
examples:
  structsparse train task=ner reg=group_lasso
  structsparse predict runs/.../model < sentences.txt > tagged.txt
  structsparse evaluate runs/.../model test.txt

`structsparse COMMAND --help` describes a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Main function of the program `structsparse`: parse the command line, run a subcommand, return the exit status.

    The exit status is 0, or 2 for mistakes of the user, or 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["train"]:
        return train.main(arguments[1:])
    options = parser().parse_args(arguments)
    try:
        models.run(options)
        sys.stdout.flush()
    except UserError as error:
        return _failed(str(error))
    except BrokenPipeError:  # the process that reads the output has ended
        _discard_output()
    except OSError as error:
        _discard_output()
        return _failed(f"the output could not be written ({error.strerror})")
    except MemoryError:
        _discard_output()
        return _failed("not enough memory; ask for fewer results (--nbest) or split long sentences")
    except KeyboardInterrupt:
        _discard_output()
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The main parser of the command line, with a parser for each subcommand."""
    raw = argparse.RawDescriptionHelpFormatter
    result = argparse.ArgumentParser("structsparse", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw)
    result.add_argument("--version", action="version", version=f"structsparse {VERSION}")
    adder = result.add_subparsers(metavar="COMMAND", required=True)
    adder.add_parser("train", help=train.PURPOSE, add_help=False)  # only for the help; `train.main` parses arguments
    models.add_subcommands(adder)
    return result


def _failed(reason: str) -> int:
    """Main program: print an error message to standard error and return the exit status 2."""
    print(f"error: {reason}", file=sys.stderr)
    return 2


def _discard_output() -> None:
    """Main program: redirect standard output to the null device, so that Python writes nothing more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
