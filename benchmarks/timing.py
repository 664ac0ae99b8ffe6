"""Timing of contenders turn by turn within one run, and the output of figures as a table and as JSON."""

import argparse
import json
import statistics
import time
from pathlib import Path

ROUNDS, QUICK_ROUNDS = 15, 5
TURN = 0.05  # seconds a callable runs for at least, each time its turn comes


def arguments(description, **flags):
    """--json FILE, --quick, --threads N, and flags with their help; sets the threads of torch and numba."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the figures to this file as one flat object")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, within a minute")
    parser.add_argument("--threads", type=int, default=1, help="one thread: CPU time; more: wall time")
    for name, text in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    options = parser.parse_args()
    set_threads(options.threads)
    return options


def set_threads(count):
    import numba
    import torch

    torch.set_num_threads(count)
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))


def clock(threads):
    """With one thread the CPU time of the process: other work on the machine disturbs it least."""
    return time.process_time if threads == 1 else time.perf_counter


def compare(calls, options):
    """Median seconds per call of each of the named callables, which take turns."""
    now = clock(options.threads)
    repeats, seconds = {}, {name: [] for name in calls}
    for name, call in calls.items():
        call()  # compiles, fills caches
        begin = now()
        call()
        repeats[name] = max(1, round(TURN / max(now() - begin, 1e-6)))
    for _ in range(QUICK_ROUNDS if options.quick else ROUNDS):
        for name, call in calls.items():
            begin = now()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((now() - begin) / repeats[name])
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def print_table(title, columns, rows):
    """Rows of text and numbers under a title; the first column to the left, the others to the right."""
    texts = [[cell if isinstance(cell, str) else f"{cell:.3f}" for cell in row] for row in [columns, *rows]]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    print(title)
    for row in texts:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([row[0].ljust(len(first)), *others]))
    print()


def write_json(path, figures):
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")
