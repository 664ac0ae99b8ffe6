"""The end of a run: test once, export the small model, write metrics.json and the report."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig
from rich.console import Console

from structsparse.artifacts.folder import parts
from structsparse.artifacts.quantization import Small
from structsparse.report import tables as report
from structsparse.training import run_folder as course
from structsparse.training import stage as recipe
from structsparse.training.run_folder import first_process
from structsparse.training.task import Data, Task

MOST_VALUES = 5_000_000  # weights whose different values are counted


def finish(
    cfg: DictConfig,
    choices: Mapping[str, str],
    task: Task,
    data: Data,
    outcomes: Sequence[recipe.Outcome],
    small: Small,
    seconds: dict[str, float],
    folder: Path,
    console: Console,
) -> dict[str, object]:
    """Test once, export, report."""
    first, last = recipe.selecting(outcomes), task.rounded(task.settled(outcomes[-1]), small)
    dev = last.module.evaluate(last.data.batches("dev", 256)).result()
    begin = time.perf_counter()
    score = last.module.evaluate(last.data.batches("test", 256)).result()
    seconds["seconds_prepare"] += sum(outcome.figures["seconds_build"] for outcome in outcomes)
    seconds |= {"seconds_fit": sum(o.figures["seconds_fit"] for o in outcomes)}
    seconds |= {"seconds_test": time.perf_counter() - begin}
    metrics = {
        "task": task.name, "recipe": choices["recipe"],
        **({"loss": choices["loss"], "reg": choices["reg"]} if first.penalties else {"model": choices["model"]}),
        "data": data.name, "split": "test", "seed": cfg.seed,
        **{key: value for key, value in score.items() if isinstance(value, float)},
        **{f"dev_{name}": dev[name] for name in (data.metric, "las", "sentence_accuracy") if name in dev},
        **task.sparsity(data, first, last), "distinct_values": distinct_values(last.module),
        **recipe.figures(outcomes), **seconds,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip
    if first_process():
        metrics["artifact_bytes"] = task.export(folder / "model", last, console)
        if metrics["artifact_bytes"] is not None:
            metrics |= report_bytes(folder, console)
        table = task.write_report(folder / "report", data, outcomes, last)
        course.write(folder / "report", outcomes)
        log_hyperparameters(cfg, choices, metrics, folder)
        report.write_metrics(folder / "metrics.json", metrics)
        report.summary(console, metrics, table, folder)
    return metrics


def report_bytes(folder: Path, console: Console) -> dict[str, int]:
    """What the bytes of the small model tell, shown and written down."""
    sizes = parts(folder / "model")
    table = report.Table(("part", "bytes"), [*sizes.items(), ("all", sum(sizes.values()))])
    report.write_text(folder / "report" / "artifact.tsv", report.tsv(table))
    told = ", ".join(f"{part} {size:,}" for part, size in sizes.items())
    console.print(f"the small model has {sum(sizes.values()):,} bytes: {told}", highlight=False, soft_wrap=True)
    return {f"artifact_bytes_{part}": size for part, size in sizes.items()}


def distinct_values(module: lightning.LightningModule) -> int | None:
    """How many different numbers the weights are that are not zero, all parameters together; of too many to sort them
    in a moment, nobody asks."""
    weights = [parameter.detach() for parameter in module.parameters()]
    if not 0 < sum(int(own.count_nonzero()) for own in weights) <= MOST_VALUES:
        return None
    return len(torch.cat([own[own != 0].double() for own in weights]).unique())


def log_hyperparameters(cfg: DictConfig, choices: Mapping[str, str], metrics: dict[str, object], folder: Path) -> None:
    """TensorBoard's table of runs: the choices of each beside its final figures."""
    figures = {f"final/{key}": value for key, value in metrics.items() if isinstance(value, int | float)}
    options = {key: str(value) for key, value in choices.items() if "hydra/" not in key}
    rate = {"lr": cfg.solver.lr} if "lr" in cfg.solver else {}
    board = TensorBoardLogger(folder, name="tensorboard", version="", default_hp_metric=False)
    board.log_hyperparams({**options, "strength": cfg.reg.strength, **rate, "batch": cfg.batch}, figures)
    board.finalize("success")
