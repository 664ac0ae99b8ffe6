"""Command line of the tables: `python -m benchmarks.harness martins2011/chunking`."""

import sys

from benchmarks.harness.runner import main

sys.exit(main())
