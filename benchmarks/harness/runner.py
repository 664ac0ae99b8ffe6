"""Run the rows of a table, each run in a process of its own, and write the table, its CSV and its figures.

    python -m benchmarks.harness martins2011/chunking            every run that is not finished yet
    python -m benchmarks.harness martins2011/chunking --only mira_all,lasso --seeds 0 --jobs 2

The module `spec` documents what a table consists of. All files are in runs/experiments/NAME: rows/ROW/PASS-SEED/ of
each run with its log.txt, table.csv, table.md and figures.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import living_templates, paired, tables
from benchmarks.harness.fork_server import ForkServer
from benchmarks.harness.spec import ROOT, Row, Spec, read_spec, short
from structsparse.base.errors import UserError
from structsparse.base.files import write_text

_STATE = "run.json"


@dataclass(frozen=True)
class Run:
    """One process: a row under one pass, place and seed."""

    row: Row
    part: str  # the pass
    seed: int | str
    options: tuple[str, ...]
    folder: Path
    spec: Spec
    place: tuple = ()  # a value of each option in spec.across

    @property
    def name(self) -> str:
        return " ".join(map(str, (self.row.name, self.part, *self.place, self.spec.seed_column, self.seed)))

    @property
    def state(self) -> dict:
        """The options, exit status and times of the finished run; empty if it did not end."""
        path = self.folder / _STATE
        return json.loads(path.read_text()) if path.is_file() else {}

    @property
    def finished(self) -> bool:
        """Whether it ended without errors, with the same options."""
        same = self.state.get("options") == list(self.options) and self.state.get("status") == 0
        return same and (self.folder / "metrics.json").is_file()


def runs_of(spec: Spec, folder: Path, only: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Run]:
    """All runs of a table; `only` those of some rows (a name, with or without its -VALUE) and seeds."""
    names = {row.name for row in spec.rows} | {row.entry for row in spec.rows}
    for name in only:
        if name not in names:
            raise UserError(f"--only {name}: no such row; there are {', '.join(row.name for row in spec.rows)}")
    return [
        Run(row, part, seed, (*row.options, *options, *_settings(spec.across, place), f"{spec.over}={seed}"),
            folder / "rows" / row.name / "-".join(map(str, (part, *place, seed))), spec, place)
        for row in spec.rows
        if not only or {row.name, row.entry} & set(only)
        for part, options in spec.passes.items()
        for place in spec.places
        for seed in dict.fromkeys(seeds or row.seeds)
    ]  # fmt: skip


def _settings(across: Mapping[str, tuple], place: tuple) -> list[str]:
    return [f"{option}={value}" for option, value in zip(across, place, strict=True)]


class Runner:
    """Runs processes, `jobs` at a time. If one fails, the failure is printed and the others continue."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise UserError(f"--jobs {jobs}: expected a number of processes, at least 1")
        self.jobs = jobs
        self.idle: dict[Path, list[ForkServer]] = {}  # by script
        self.busy: set[ForkServer] = set()
        self.lock, self.stopping = threading.Lock(), False

    def run(self, runs: Sequence[Run]) -> list[Run]:
        """Run what is not finished; returns the runs that have failed."""
        waiting, failed = [run for run in runs if not run.finished], []
        if len(waiting) < len(runs):
            print(f"{len(runs) - len(waiting)} of {len(runs)} runs are already finished", flush=True)
        with ThreadPoolExecutor(self.jobs) as pool:
            started = {pool.submit(self._run_one, run): run for run in waiting}
            try:
                for count, done in enumerate(as_completed(started), start=1):
                    run = started[done]
                    print(f"[{count}/{len(waiting)}] {run.name}: {_outcome(done)}", flush=True)
                    failed += [] if run.finished else [run]
            except BaseException:
                self.stop()
                pool.shutdown(cancel_futures=True)
                raise
            finally:
                self.close()
        return failed

    def stop(self) -> None:
        """Stop all runs; none is started any more."""
        with self.lock:
            self.stopping = True
            for server in self.busy:
                server.stop()

    def close(self) -> None:
        """End idle servers; `run` starts new ones."""
        with self.lock:
            idle, self.idle = [server for servers in self.idle.values() for server in servers], {}
        for server in idle:
            server.close()

    def _run_one(self, run: Run) -> str:
        """Run one process to its end; a short report of it."""
        if run.finished:
            return "finished meanwhile"
        shutil.rmtree(run.folder, ignore_errors=True)
        run.folder.mkdir(parents=True)
        log, script = run.folder / "log.txt", run.spec.script
        begin = time.perf_counter()
        server = self._take_server(script, log)
        if server is None:
            return "not started"
        ended = server.run(log, [f"hydra.run.dir={run.folder}", *run.options])
        with self.lock:
            self.busy.discard(server)
            reusable = server.alive and not self.stopping
            if reusable:
                self.idle.setdefault(script, []).append(server)
        if not reusable:
            server.close()
        state = {"options": list(run.options), **ended, "seconds": time.perf_counter() - begin}
        write_text(run.folder / _STATE, json.dumps(state, indent=1) + "\n")
        if not run.finished:
            return f"failed with status {ended['status']}: {_last_error(log)} ({run.folder})"
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # a finished run needs none, and they are large
        return _summary(run, json.loads((run.folder / "metrics.json").read_text()), state["seconds"])

    def _take_server(self, script: Path, log: Path) -> ForkServer | None:
        """An idle server, or a new one whose import errors go to the log; None once all are to stop."""
        with self.lock:
            if self.stopping:
                return None
            if self.idle.get(script):
                server = self.idle[script].pop()
            else:
                threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
                # set both: torch would take numba's number, and threads that wait for each other's turn wait long
                environment = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, **os.environ}
                environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
                with log.open("wb") as errors:
                    server = ForkServer(script, environment, errors)
            self.busy.add(server)
            return server


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "it printed nothing")


def _outcome(done: Future) -> str:
    """The report of a run; files that cannot be read or written fail this run alone."""
    try:
        return done.result()
    except (OSError, ValueError) as error:
        return f"failed: {error}"


def _summary(run: Run, metrics: Mapping, seconds: float) -> str:
    """Score, weights and time of a run; the score on test only where nothing is left to be chosen."""
    part, metric = "test" if "data.join_dev=true" in run.options else "dev", run.spec.metric
    keys = (metric, "accuracy") if part == "test" else (f"dev_{metric}", "dev_accuracy", metric)
    score = next((metrics[key] for key in keys if metrics.get(key) is not None), float("nan"))
    weights = "" if metrics.get("nonzero") is None else f"{metrics['nonzero']:,} weights, "
    return f"{part} {score:.6g}, {weights}{seconds:.1f} s"


def records(runs: Sequence[Run]) -> list[dict]:
    """A flat record of each finished run: its figures, its row, pass, place and seed, its times."""
    results = []
    for run in runs:
        if run.finished:
            labels = {"row": run.row.name, "method": run.row.method, "pass": run.part}
            labels |= dict(zip(map(short, run.spec.across), run.place, strict=True))
            labels[run.spec.seed_column] = run.seed
            times = {key: run.state[key] for key in ("seconds", "seconds_cpu")}
            metrics = json.loads((run.folder / "metrics.json").read_text())
            results.append(metrics | times | labels | {"folder": str(run.folder)})
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m benchmarks.harness`; the exit status, 1 if a run has failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.harness", description="Run the rows of a table that are not finished yet."
    )
    parser.add_argument("tables", nargs="+", metavar="NAME", help="a table of benchmarks/tables/, or a file *.yaml")
    parser.add_argument("--only", default="", metavar="ROW,...", help="run only these rows")
    parser.add_argument("--seeds", default="", metavar="SEED,...", help="instead of those of the table")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of parallel processes")
    parser.add_argument("--quick", action="store_true", help="try the table on a small corpus, with one seed")
    parser.add_argument("--folder", type=Path, default=Path("runs/experiments"), help="where all files are written")
    options = parser.parse_args(arguments)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run_tables(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)


def _seeds(typed: str, spec: Spec) -> list[int | str]:
    """The seeds of --seeds."""
    seeds = [int(seed) if seed.isdigit() else seed for seed in typed.split(",") if seed]
    if spec.over == "seed" and not all(isinstance(seed, int) for seed in seeds):
        raise UserError(f"--seeds {typed}: expected whole numbers, separated by commas")
    return seeds


def _interrupt(signum: int, frame: object) -> None:
    """End as Ctrl-C does, so that no process of a row is left behind."""
    raise KeyboardInterrupt


def _run_tables(options: argparse.Namespace) -> int:
    only = [name for name in options.only.split(",") if name]
    failed, done, runner = [], [], Runner(options.jobs)
    root = options.folder / ("quick" if options.quick else "")
    for name in options.tables:
        spec = read_spec(name, options.quick)
        seeds = _seeds(options.seeds, spec)
        folder = (root / spec.name).resolve()
        interrupted = False
        with _locked(folder):
            try:
                failed += runner.run(runs_of(spec, folder, only, seeds))
            except KeyboardInterrupt:
                interrupted = True
        every = runs_of(spec, folder) + (runs_of(spec, folder, seeds=seeds) if seeds else [])
        results = records(list({run.folder: run for run in every}.values()))
        (paired if spec.paired else tables).write(folder, spec, results)
        done.append((spec, results))
        print(f"\n{(folder / 'table.md').read_text()}\n{folder}", flush=True)
        if interrupted:
            print("interrupted; the same command continues", file=sys.stderr)
            return 130
    if len(done) > 1:
        living_templates.write_comparison(root / "kinds", done)
        paired.write_together(root / "together", done)
    for run in failed:
        print(f"failed: {run.name}; see {run.folder / 'log.txt'}", file=sys.stderr)
    return 1 if failed else 0


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a table's folder: two processes in one folder would overwrite each other's rows."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{folder}: another process runs this table; wait for it, or choose another --folder"
            ) from None
        yield
