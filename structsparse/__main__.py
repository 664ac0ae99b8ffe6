"""`python -m structsparse` is the program `structsparse`."""

import sys

from structsparse.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
