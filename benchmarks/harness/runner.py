"""Run a table: many runs of train.py, each in a process of its own, and what they show side by side.

    python -m benchmarks.harness martins2011/chunking            every row that is not finished yet
    python -m benchmarks.harness martins2011/chunking --only mira_all,lasso --seeds 0 --jobs 2

benchmarks/tables/NAME.yaml says which rows there are:

    title      what the table shows
    metric     what dev chooses by and the table shows: f1, perplexity, ...
    script     what is run in the place of train.py
    seeds      the runs of each row; their means are shown
    over       the option that is set to each of them: `seed`, or data.part, ...; or {OPTION: [values], ..., LAST:
               [seeds]}: each row is run with every combination, and has a column for each of those before the last
    common     options of all runs
    quick      options of --quick, which come last; two values of each varied option are run, with seed 0
    passes     options under which each row is run once more: dev figures are of the first, test figures of the last
    reference  the row that others are compared with; of one that varies, what dev chooses
    against    where `over` names several options: rows that all others are paired with, run by run
    note       a few sentences below the title
    converged  a run is marked as not converged if neither its gap over its objective nor its stationarity is below it
    shows      further figures of metrics.json, a column for each
    memory     rows whose features are drawn over time
    kinds      rows whose living kinds of templates are counted
    curves     NAME: {x, y, rows, against}; a figure and a table of `y` (some columns of the table) by the varied option
               `x`, or another column, a line for each row; `against` is a value of x, or `best`: the last value is
               compared with it
    rows       NAME: {method, options, ...}; `method` is a line in the figure, `seeds` are the row's own, with
               `selects: true` it is one of those among which dev chooses, `paper` are published figures: {dev, test,
               weights}; with `vary: {KEY: [values], ...}` it stands for a row NAME-VALUE... for each combination, and
               `paper` is a list

Everything lies in runs/experiments/NAME: rows/ROW/PASS-SEED/ of each run with log.txt, table.csv, table.md, figures.
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

from benchmarks.harness import living_templates as kinds
from benchmarks.harness import paired, tables
from benchmarks.harness.fork_server import Warm
from benchmarks.harness.spec import ROOT, Experiment, Row, read, short
from structsparse.base.errors import UserError
from structsparse.base.files import write_text

_STATE = "run.json"


@dataclass(frozen=True)
class Run:
    """One process: a row under one seed and pass."""

    row: Row
    part: str  # the pass
    seed: int | str
    options: tuple[str, ...]
    folder: Path
    experiment: Experiment
    place: tuple = ()  # a value of each further option that its experiment runs over

    @property
    def name(self) -> str:
        return " ".join(map(str, (self.row.name, self.part, *self.place, self.experiment.repeated, self.seed)))

    @property
    def state(self) -> dict:
        """What it was run with and how it ended; empty if it was not, or not to the end."""
        path = self.folder / _STATE
        return json.loads(path.read_text()) if path.is_file() else {}

    @property
    def finished(self) -> bool:
        same = self.state.get("options") == list(self.options) and self.state.get("status") == 0
        return same and (self.folder / "metrics.json").is_file()


def runs_of(experiment: Experiment, folder: Path, only: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Run]:
    """All runs; `only` some rows (a name, or what comes before its -VALUE) and seeds."""
    names = {row.name for row in experiment.rows} | {row.entry for row in experiment.rows}
    for name in only:
        if name not in names:
            raise UserError(f"--only {name}: no such row; there are {', '.join(row.name for row in experiment.rows)}")
    return [
        Run(row, part, seed, (*row.options, *options, *_set(experiment.across, place), f"{experiment.over}={seed}"),
            folder / "rows" / row.name / "-".join(map(str, (part, *place, seed))), experiment, place)
        for row in experiment.rows
        if not only or {row.name, row.entry} & set(only)
        for part, options in experiment.passes.items()
        for place in experiment.places
        for seed in dict.fromkeys(seeds or row.seeds)
    ]  # fmt: skip


def _set(across: Mapping[str, tuple], place: tuple) -> list[str]:
    return [f"{option}={value}" for option, value in zip(across, place, strict=True)]


class Runner:
    """Runs one process after the other, `jobs` at a time. One that fails is said so, and the others go on."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise UserError(f"--jobs {jobs}: expected a number of processes, at least 1")
        self.jobs = jobs
        self.warm: dict[Path, list[Warm]] = {}  # idle ones of each script
        self.busy: set[Warm] = set()
        self.lock, self.stopping = threading.Lock(), False

    def run(self, runs: Sequence[Run]) -> list[Run]:
        """Those that have failed, of the ones that were not finished before."""
        waiting, failed = [run for run in runs if not run.finished], []
        if len(waiting) < len(runs):
            print(f"{len(runs) - len(waiting)} of {len(runs)} runs are finished already", flush=True)
        with ThreadPoolExecutor(self.jobs) as pool:
            started = {pool.submit(self._one, run): run for run in waiting}
            try:
                for count, done in enumerate(as_completed(started), start=1):
                    run = started[done]
                    print(f"[{count}/{len(waiting)}] {run.name}: {_said(done)}", flush=True)
                    failed += [] if run.finished else [run]
            except BaseException:
                self.stop()
                pool.shutdown(cancel_futures=True)
                raise
            finally:
                self.close()
        return failed

    def stop(self) -> None:
        with self.lock:
            self.stopping = True
            for warm in self.busy:
                warm.stop()

    def close(self) -> None:
        """Idle ones are ended; they are started again when something is run."""
        with self.lock:
            idle, self.warm = [warm for some in self.warm.values() for warm in some], {}
        for warm in idle:
            warm.close()

    def _one(self, run: Run) -> str:
        """Start it, wait for it, and say in a few words how it went."""
        if run.finished:
            return "finished meanwhile"
        shutil.rmtree(run.folder, ignore_errors=True)
        run.folder.mkdir(parents=True)
        log, script = run.folder / "log.txt", run.experiment.script
        begin = time.perf_counter()
        warm = self._taken(script, log)
        if warm is None:
            return "not started"
        ended = warm.run(log, [f"hydra.run.dir={run.folder}", *run.options])
        with self.lock:
            self.busy.discard(warm)
            idle = warm.lives and not self.stopping
            if idle:
                self.warm.setdefault(script, []).append(warm)
        if not idle:
            warm.close()
        state = {"options": list(run.options), **ended, "seconds": time.perf_counter() - begin}
        write_text(run.folder / _STATE, json.dumps(state, indent=1) + "\n")
        if not run.finished:
            return f"failed with status {ended['status']}: {_last_words(log)} ({run.folder})"
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # nothing goes on from there; they fill disks
        return _in_brief(run, json.loads((run.folder / "metrics.json").read_text()), state["seconds"])

    def _taken(self, script: Path, log: Path) -> Warm | None:
        """An idle process, or a new one, whose complaints about the script go to the log; None once all are to stop."""
        with self.lock:
            if self.stopping:
                return None
            if self.warm.get(script):
                warm = self.warm[script].pop()
            else:
                threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
                # both: numba's would become torch's as well, and threads that wait for each other's turn wait long
                environment = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, **os.environ}
                environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
                with log.open("wb") as errors:
                    warm = Warm(script, environment, errors)
            self.busy.add(warm)
            return warm


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "it said nothing")


def _said(done: Future) -> str:
    """An odd row is no reason to leave out the others."""
    try:
        return done.result()
    except (OSError, ValueError) as error:
        return f"failed: {error}"


def _in_brief(run: Run, metrics: Mapping, seconds: float) -> str:
    """On test only where nothing is left to be chosen."""
    part, metric = "test" if "data.join_dev=true" in run.options else "dev", run.experiment.metric
    keys = (metric, "accuracy") if part == "test" else (f"dev_{metric}", "dev_accuracy", metric)
    score = next((metrics[key] for key in keys if metrics.get(key) is not None), float("nan"))
    weights = "" if metrics.get("nonzero") is None else f"{metrics['nonzero']:,} weights, "
    return f"{part} {score:.6g}, {weights}{seconds:.1f} s"


def records(runs: Sequence[Run]) -> list[dict]:
    """What the finished ones have found: a flat object each."""
    found = []
    for run in runs:
        if run.finished:
            said = {"row": run.row.name, "method": run.row.method, "pass": run.part}
            said |= dict(zip(map(short, run.experiment.across), run.place, strict=True))
            said[run.experiment.repeated] = run.seed
            state = {key: run.state[key] for key in ("seconds", "seconds_cpu")}
            metrics = json.loads((run.folder / "metrics.json").read_text())
            found.append(metrics | state | said | {"folder": str(run.folder)})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.harness", description="Run the rows of a table that are not finished yet."
    )
    parser.add_argument("experiments", nargs="+", metavar="NAME", help="of benchmarks/tables/, or a file *.yaml")
    parser.add_argument("--only", default="", metavar="ROW,...", help="run these rows only")
    parser.add_argument("--seeds", default="", metavar="SEED,...", help="instead of those of the experiment")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time")
    parser.add_argument("--quick", action="store_true", help="a small planted corpus and one seed: does it all work?")
    parser.add_argument("--folder", type=Path, default=Path("runs/experiments"), help="where everything goes")
    given = parser.parse_args(arguments)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        return _run_all(given)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)


def _seeds(given: str, experiment: Experiment) -> list[int | str]:
    """What is asked for in the place of the experiment's own."""
    seeds = [int(seed) if seed.isdigit() else seed for seed in given.split(",") if seed]
    if experiment.over == "seed" and not all(isinstance(seed, int) for seed in seeds):
        raise UserError(f"--seeds {given}: expected whole numbers parted by commas")
    return seeds


def _stop(signum: int, frame: object) -> None:
    """As Ctrl-C does: no process of a row is left behind."""
    raise KeyboardInterrupt


def _run_all(given: argparse.Namespace) -> int:
    only = [name for name in given.only.split(",") if name]
    failed, done, runner = [], [], Runner(given.jobs)
    for name in given.experiments:
        experiment = read(name, given.quick)
        seeds = _seeds(given.seeds, experiment)
        folder = (given.folder / ("quick" if given.quick else "") / experiment.name).resolve()
        interrupted = False
        with _alone(folder):
            try:
                failed += runner.run(runs_of(experiment, folder, only, seeds))
            except KeyboardInterrupt:
                interrupted = True
        every = runs_of(experiment, folder) + (runs_of(experiment, folder, seeds=seeds) if seeds else [])
        found = records(list({run.folder: run for run in every}.values()))
        (paired if experiment.paired else tables).write(folder, experiment, found)
        done.append((experiment, found))
        print(f"\n{(folder / 'table.md').read_text()}\n{folder}", flush=True)
        if interrupted:
            print("interrupted; the same command goes on", file=sys.stderr)
            return 130
    if len(done) > 1:
        kinds.write(given.folder / ("quick" if given.quick else "") / "kinds", done)
        paired.write_together(given.folder / ("quick" if given.quick else "") / "together", done)
    for run in failed:
        print(f"failed: {run.name}; see {run.folder / 'log.txt'}", file=sys.stderr)
    return 1 if failed else 0


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two in one folder would run over each other's rows."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{folder}: another process runs this table; wait for it, or give another --folder"
            ) from None
        yield
