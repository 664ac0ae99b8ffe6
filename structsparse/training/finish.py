"""The end of a run: test the model once, export its artifact, write metrics.json and the report, print the summary."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.table import Table as RichTable

from structsparse.artifacts.folder import TensorParts, part_sizes
from structsparse.artifacts.quantization import ArtifactOptions
from structsparse.base.files import write_text
from structsparse.report.tables import Table, cell, console_table, tsv
from structsparse.training.data import Data
from structsparse.training.options import other_presets
from structsparse.training.run_folder import first_process
from structsparse.training.stage import FitRecord, StageResult, selecting_stage
from structsparse.training.task import Task

MOST_VALUES = 5_000_000  # with more nonzero weights than this, distinct values are not counted
# tables written after training: file name, columns, function that takes the lines from the record of a fit
RECORDED: tuple[tuple[str, tuple[str, ...], Callable[[FitRecord], Sequence[tuple]]], ...] = (
    ("budget.tsv", ("step", "parameter", "strength"), lambda record: record.cuts),
    ("counts.tsv", ("epoch", "step", "rows", "weights"), lambda record: record.counts),
    ("outer.tsv", ("epoch", "primal", "dual", "flips", "living"), lambda record: record.outer),
    ("prior.tsv", ("epoch", "objective", "noise", "shape"), lambda record: record.memory),
)


@dataclass(frozen=True)
class RunLabels:
    """Finishing a run: the options that identify the run in metrics.json and in the table of runs in TensorBoard."""

    choices: Mapping[str, str]  # the chosen option of each configuration group
    seed: int
    numbers: Mapping[str, float | None]  # numeric options for the table of runs in TensorBoard


def finish(
    labels: RunLabels,
    task: Task,
    data: Data,
    results: Sequence[StageResult],
    small: ArtifactOptions,
    seconds: Mapping[str, float],
    folder: Path,
    console: Console,
) -> dict[str, object]:
    """Finish a run: test the last model once, then export and report it; returns the figures of metrics.json.

    The model is tested with weights rounded as in its artifact. `seconds` holds the preparation time. After a grid
    search, it also holds the chosen option values and the time of the search."""
    first, last = selecting_stage(results), task.rounded(task.finalize(results[-1]), small)
    dev = last.score("dev")
    begin = time.perf_counter()
    test = last.score("test")
    figures = {
        **labelled(labels, task, data, first),
        **{key: value for key, value in test.items() if isinstance(value, float)},
        **{f"dev_{name}": dev[name] for name in (data.metric, "las", "sentence_accuracy") if name in dev},
        **task.sparsity(data, first, last),
        "distinct_values": distinct_values(last.module),
        **fit_figures(results),
        **spent(seconds, results, time.perf_counter() - begin),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if first_process():
        figures["artifact_bytes"] = task.export(folder / "model", last, console)
        if figures["artifact_bytes"] is not None:
            figures |= write_artifact_sizes(folder, task.tensor_parts, console)
        table = task.write_report(folder / "report", data, results, last)
        write_records(folder / "report", results)
        write_details(folder / "report", task.details(test), console)
        log_hyperparameters(labels, figures, folder)
        write_metrics(folder / "metrics.json", figures)
        print_summary(console, figures, table, folder)
        for line in other_presets(labels.choices["task"], labels.choices.get("preset", "")):
            console.print(line, highlight=False, soft_wrap=True)
    return figures


# --- figures


def labelled(labels: RunLabels, task: Task, data: Data, first: StageResult) -> dict[str, object]:
    """Finishing a run: the entries of metrics.json that identify the run, such as task, data, seed, loss and penalty.

    A model that is estimated by counting has neither loss nor penalty; the name of the model replaces both."""
    choices = labels.choices
    trained = {"loss": choices["loss"], "reg": choices["reg"]} if first.penalties else {"model": choices["model"]}
    names = {"task": task.name, "recipe": choices["recipe"], **trained}
    return {**names, "data": data.name, "split": "test", "seed": labels.seed}


def fit_figures(results: Sequence[StageResult]) -> dict[str, object]:
    """Finishing a run: the figures of the fit.

    Most figures describe the stage whose penalty selected groups. With several stages, objective and stationarity of
    the last stage are added."""
    first, last = selecting_stage(results).figures, results[-1].figures
    proven, strengths = first.certificate, first.strengths
    figures = {
        "objective": proven.objective,
        "penalty": proven.penalty,
        "stationarity": proven.stationarity,
        "duality_gap": proven.duality_gap,
        "near_gap": proven.near_gap,
        "groups_uncertified": proven.groups_uncertified,
        "critical_strength": strengths.critical,
        "strength": strengths.first,
    }
    if len(results) > 1:
        figures["final_objective"] = last.certificate.objective
        figures["final_stationarity"] = last.certificate.stationarity
    counts = [line for result in results for line in result.figures.record.counts]
    if counts:
        figures |= {"rows_peak": max(line[2] for line in counts), "weights_peak": max(line[3] for line in counts)}
    items = sum(result.data.items * result.figures.record.epochs for result in results)
    return figures | {"items_per_second": items / sum(result.figures.record.seconds for result in results)}


def spent(seconds: Mapping[str, float], results: Sequence[StageResult], testing: float) -> dict[str, float]:
    """Finishing a run: the seconds that preparation, training and testing have taken.

    `seconds` holds the preparation time. `testing` is the time of the test."""
    building = sum(result.figures.seconds_build for result in results)
    return {
        **seconds,
        "seconds_prepare": seconds["seconds_prepare"] + building,
        "seconds_fit": sum(result.figures.record.seconds for result in results),
        "seconds_test": testing,
    }


def distinct_values(module: lightning.LightningModule) -> int | None:
    """Finishing a run: the number of distinct values among the nonzero weights of all parameters.

    The result is None if all weights are zero, or if more than `MOST_VALUES` weights are nonzero."""
    weights = [parameter.detach() for parameter in module.parameters()]
    if not 0 < sum(int(values.count_nonzero()) for values in weights) <= MOST_VALUES:
        return None
    return len(torch.cat([values[values != 0].double() for values in weights]).unique())


# --- files


def write_artifact_sizes(folder: Path, parts: TensorParts, console: Console) -> dict[str, int]:
    """Finishing a run: print and write the size in bytes of each part of the artifact.

    Returns the sizes as figures of metrics.json."""
    sizes = part_sizes(folder / "model", parts)
    table = Table(("part", "bytes"), [*sizes.items(), ("all", sum(sizes.values()))])
    write_text(folder / "report" / "artifact.tsv", tsv(table))
    listed = ", ".join(f"{part} {size:,}" for part, size in sizes.items())
    console.print(f"the artifact has {sum(sizes.values()):,} bytes: {listed}", highlight=False, soft_wrap=True)
    return {f"artifact_bytes_{part}": size for part, size in sizes.items()}


def write_records(folder: Path, results: Sequence[StageResult]) -> None:
    """Finishing a run: write the tables that were recorded in training, each with the lines of all stages.

    Empty tables are not written."""
    for name, header, lines_of in RECORDED:
        lines = [(result.figures.stage, *line) for result in results for line in lines_of(result.figures.record)]
        if lines:
            write_text(folder / name, tsv(Table(("stage", *header), lines)))


def write_details(folder: Path, table: Table | None, console: Console) -> None:
    """Finishing a run: print the test scores of each type, and write them to the report; None: there are no types."""
    if table is not None:
        write_text(folder / "types.tsv", tsv(table))
        console.print(console_table(table, "test, by type"))


def write_metrics(path: Path, figures: Mapping[str, object]) -> None:
    """Finishing a run: write metrics.json as one flat JSON object; numbers that are not finite become null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in figures.items()
    }
    write_text(path, json.dumps(finite, indent=2, ensure_ascii=False) + "\n")


def log_hyperparameters(labels: RunLabels, figures: Mapping[str, object], folder: Path) -> None:
    """Finishing a run: log the options and final figures of the run to the table of runs in TensorBoard."""
    final = {f"final/{key}": value for key, value in figures.items() if isinstance(value, int | float)}
    choices = {key: str(value) for key, value in labels.choices.items() if "hydra/" not in key}
    board = TensorBoardLogger(folder, name="tensorboard", version="", default_hp_metric=False)
    board.log_hyperparams({**choices, **labels.numbers}, final)
    board.finalize("success")


# --- console


def print_summary(console: Console, figures: Mapping[str, object], table: Table | None, folder: Path) -> None:
    """Finishing a run: print the living groups, the figures of the run, and the folder of its files."""
    if table is not None:
        print_living(console, figures, table)
    result = RichTable(title="result", title_justify="left", show_header=False)
    for key, value in figures.items():
        if value is not None:
            result.add_row(key, cell(value))
    console.print(result)
    console.print(f"all files are in [bold]{folder}[/bold]; view with: tensorboard --logdir {folder}", soft_wrap=True)


def print_living(console: Console, figures: Mapping[str, object], table: Table) -> None:
    """Finishing a run: print the living groups, and the dead groups that the gradient would make nonzero.

    For a model without groups, the living features are printed."""
    if "lives" not in table.header:
        console.print(console_table(table, "what lives"))
        return
    lives = table.header.index("lives")
    header, *rows = [row[:lives] + row[lives + 1 :] for row in [table.header, *table.rows] if row[lives] != "no"]
    # numbers of living groups and of all groups in the model; the table may list only some of the groups
    alive, groups = figures.get("groups_alive"), figures.get("groups")
    title = f"living groups: {alive or len(rows):,} of {groups or len(table.rows):,}"
    console.print(console_table(Table(header, rows), title))
    if "would wake" in table.header:
        column = table.header.index("would wake")
        names = [row[0] for row in table.rows if row[column] == "yes"]
        listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        console.print(f"{len(names)} groups are dead only by budget or noise, the gradient would wake them: {listed}")
