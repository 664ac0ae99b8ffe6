"""Entry point of `python -m structsparse.cli`, which runs the program `structsparse`."""

import sys

from structsparse.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
