"""Train a structured predictor under a penalty that switches off whole groups of weights.

python train.py                                     entities on the planted corpus, under a group lasso
python train.py task=chunking data=conll2000 reg=l1
python train.py --help                              all options
"""

from __future__ import annotations

import errno
import logging
import resource
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import hydra
import lightning
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from rich.console import Console

from structsparse.artifacts.quantization import Small
from structsparse.base.errors import UserError
from structsparse.base.large_arrays import keep_pages
from structsparse.report import tables as report
from structsparse.tasks.tagging import artifact
from structsparse.training import run_folder as course
from structsparse.training import stage as recipe
from structsparse.training.callbacks.checkpoints import Stopped, WholeFiles
from structsparse.training.callbacks.monitor import SparsityMonitor
from structsparse.training.callbacks.progress import EpochLines
from structsparse.training.run_folder import decides, first_process, resume_into
from structsparse.training.search import grid, path
from structsparse.training.search import reweighting as rounds
from structsparse.training.terms import Term

MOST_VALUES = 5_000_000  # weights whose different values are counted
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TERM_KNOBS = ("strength", "relative", "parameters", "groups", "nonnegative", "ridge")
SCHEDULE_KNOBS = ("every", "warmup", "budget", "freeze", "reweight", "admm")


def train(cfg: DictConfig, folder: Path, console: Console) -> dict[str, object]:
    """One run, from the corpus to the small model; returns what it writes to metrics.json."""
    begin = time.perf_counter()
    how = OmegaConf.to_container(cfg.task, resolve=True)
    del how["name"]
    small = Small.of(OmegaConf.to_container(cfg.artifact, resolve=True))
    features = instantiate(cfg.features, _convert_="all")  # plain, but for groups of words that are features
    data = instantiate(how)(instantiate(cfg.data), features, choose=instantiate(cfg.filter), cache=cfg.cache)
    seconds = {"seconds_prepare": time.perf_counter() - begin}
    data.task.check_small(small)
    for line in data.describe():
        console.print(line, highlight=False, soft_wrap=True)
    resume = resume_into(folder, cfg.ckpt_path, OmegaConf.to_container(cfg, resolve=True))
    checkpoints, chosen = folder / "checkpoints", {}
    if cfg.grid is not None:
        outcomes, chosen = search_grid(cfg, data, folder, checkpoints, resume, console)
    elif cfg.path is None:
        outcomes = []
        stages = stages_of(cfg, data.metric, folder, console)
        for stage in stages[1:]:
            rounds.foresee(stage, data)
        for stage in stages:
            before = recipe.refuse_dead(outcomes[-1]) if outcomes else None
            outcomes.append(rounds.run(stage, data, before, checkpoints / stage.name, resume))
        recipe.refuse_dead(outcomes[-1])
    else:
        outcomes = follow_path(cfg, data, folder, checkpoints, resume, console)
    return finish(cfg, data, outcomes, small, seconds | chosen, folder, console)


def search_grid(cfg: DictConfig, data, folder: Path, checkpoints: Path, resume: bool, console: Console) -> tuple:
    """The outcomes of the combination of options that is best on dev, and which one that is."""

    def stages_at(options: Mapping[str, object]) -> list[recipe.Stage]:
        point = cfg.copy()
        point.grid = None
        for key, value in options.items():
            try:
                OmegaConf.update(point, key, value, merge=False)
            except OmegaConfBaseException:
                raise UserError(f"grid: there is no option {key}") from None
        return stages_of(point, data.metric, folder, console)

    if cfg.path is not None or cfg.data.get("join_dev"):
        raise UserError("grid: dev chooses among its points, so path must be null and data.join_dev false")
    wanted = OmegaConf.to_container(cfg.grid, resolve=True) if OmegaConf.is_config(cfg.grid) else cfg.grid
    points, best, outcomes = grid.search(stages_at, data, wanted, checkpoints, resume, console, cfg.grid_by)
    if first_process():
        grid.write(folder / "report", points, best)
    chosen = {f"chosen_{key}": value for key, value in best.options.items()}
    return outcomes, chosen | {"seconds_grid": sum(point.row["seconds"] for point in points)}


def follow_path(cfg: DictConfig, data, folder: Path, checkpoints: Path, resume: bool, console: Console) -> list:
    """The outcomes of the strength that is best on dev."""

    def stages_at(strength: float, terms: Mapping[str, float] | None) -> list[recipe.Stage]:
        first, *others = stages_of(cfg, data.metric, folder, console)
        main, *also = first.terms
        main = replace(main, strength=strength, relative=False)
        if terms is not None:
            also = [replace(term, strength=terms[term.name], relative=False) for term in also]
        return [replace(first, terms=[main, *also]), *others]

    if cfg.data.get("join_dev"):
        raise UserError("data.join_dev=true: dev, trained on as well, cannot choose a strength of the path")
    if cfg.reg.get("ridge"):
        raise UserError(f"reg.ridge={cfg.reg.ridge} has the unit of one strength; a path has many: set it to 0")
    if cfg.reg.relative is not True and not OmegaConf.is_list(cfg.path):
        raise UserError(
            f"path={cfg.path} goes down to reg.strength as a share: reg.relative must be true; or list shares"
        )
    wanted = path.shares(OmegaConf.to_object(cfg.path) if OmegaConf.is_list(cfg.path) else cfg.path, cfg.reg.strength)
    points, best = path.walk(stages_at, data, wanted, checkpoints, resume, console)
    if first_process():
        path.write(folder / "report", points, best, data.metric)
    return best.outcomes


def stages_of(cfg: DictConfig, metric: str, folder: Path, console: Console) -> list[recipe.Stage]:
    return [stage_of(name, changed(cfg, changes), metric, folder, console) for name, changes in cfg.recipe.items()]


def changed(cfg: DictConfig, changes: DictConfig | None) -> DictConfig:
    """The options of one stage. A part that says what it is (_target_) replaces, any other is merged."""
    stage = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    for key, value in (changes or {}).items():
        if key not in stage:
            raise UserError(f"recipe: {key!r} is no option of a stage; there are {', '.join(stage)}")
        replaces = not isinstance(value, DictConfig) or "_target_" in value
        stage[key] = value if replaces else OmegaConf.merge(stage[key], value)
    return stage


def stage_of(name: str, cfg: DictConfig, metric: str, folder: Path, console: Console) -> recipe.Stage:
    solver, reg = cfg.solver.copy(), cfg.reg.copy()
    final_lr = solver.pop("final_lr")
    if cfg.data.get("join_dev") and (cfg.choose != "last" or cfg.patience is not None):
        stop = "choose=last patience=null"
        raise UserError(f"data.join_dev=true: dev, trained on as well, cannot choose; stage {name} needs {stop}")
    schedule = {key: reg.pop(key, None) for key in SCHEDULE_KNOBS}
    others = [term_of(f"also.{key}", other) for key, other in (cfg.also or {}).items()]
    options = decides(OmegaConf.to_container(cfg, resolve=True))
    return recipe.Stage(
        name=name, scorer=instantiate(cfg.model), loss=instantiate(cfg.loss), optimizer=instantiate(solver),
        final_lr=final_lr, terms=[term_of("reg", reg), *others],
        batch=cfg.batch, seed=cfg.seed, choose=cfg.choose, warm=cfg.warm, survivors=cfg.survivors,
        patience=cfg.patience,
        trainer=partial(trainer_of, name, cfg, metric, folder, console),
        options=options, **schedule,
    )  # fmt: skip


def term_of(name: str, reg: DictConfig) -> Term:
    for key in OmegaConf.missing_keys(reg):
        raise UserError(f"{key.removeprefix('reg.')} needs a value")
    reg = reg.copy()
    knobs = {key: reg.pop(key, None) for key in TERM_KNOBS}
    for key in SCHEDULE_KNOBS:
        reg.pop(key, None)  # of the first term, for all
    groups = knobs.pop("groups")
    return Term(name, instantiate(reg), groups=None if groups is None else instantiate(groups), **knobs)


def trainer_of(
    name: str, cfg: DictConfig, metric: str, folder: Path, console: Console, *, before, after, penalties, quiet=False
):
    """Quiet: without TensorBoard and lines on the way, which would take longer than a point of a grid."""
    monitor = SparsityMonitor(penalties, name)
    shown = [] if quiet else [monitor, EpochLines(monitor, metric, console)]
    try:
        return lightning.Trainer(
            **OmegaConf.to_container(cfg.trainer, resolve=True),
            callbacks=[*before, *shown, *after],
            plugins=[WholeFiles()],
            logger=False if quiet else TensorBoardLogger(folder, name="tensorboard", version=""),
            default_root_dir=folder, use_distributed_sampler=False,
            enable_checkpointing=False, enable_progress_bar=False,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UserError(f"trainer: {error}") from error


def finish(cfg, data, outcomes, small: Small, seconds: dict, folder: Path, console: Console) -> dict[str, object]:
    """Test once, export, report."""
    first, last = recipe.selecting(outcomes), data.task.rounded(data.task.settled(outcomes[-1]), small)
    dev = last.module.evaluate(last.data.batches("dev", 256)).result()
    begin = time.perf_counter()
    score = last.module.evaluate(last.data.batches("test", 256)).result()
    choices = HydraConfig.get().runtime.choices
    seconds["seconds_prepare"] += sum(outcome.figures["seconds_build"] for outcome in outcomes)
    seconds |= {"seconds_fit": sum(o.figures["seconds_fit"] for o in outcomes)}
    seconds |= {"seconds_test": time.perf_counter() - begin}
    metrics = {
        "task": cfg.task.name, "recipe": choices.recipe,
        **({"loss": choices.loss, "reg": choices.reg} if first.penalties else {"model": choices.model}),
        "data": data.name, "split": "test", "seed": cfg.seed,
        **{key: value for key, value in score.items() if isinstance(value, float)},
        **{f"dev_{name}": dev[name] for name in (data.metric, "las", "sentence_accuracy") if name in dev},
        **data.task.sparsity(data, first, last), "distinct_values": distinct_values(last.module),
        **recipe.figures(outcomes), **seconds,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip
    if first_process():
        metrics["artifact_bytes"] = data.task.export(folder / "model", last, console)
        if metrics["artifact_bytes"] is not None:
            metrics |= report_bytes(folder, console)
        table = data.task.write_report(folder / "report", data, outcomes, last)
        course.write(folder / "report", outcomes)
        log_hyperparameters(cfg, metrics, folder)
        report.write_metrics(folder / "metrics.json", metrics)
        report.summary(console, metrics, table, folder)
    return metrics


def report_bytes(folder: Path, console: Console) -> dict[str, int]:
    """What the bytes of the small model tell, shown and written down."""
    parts = artifact.parts(folder / "model")
    table = report.Table(("part", "bytes"), [*parts.items(), ("all", sum(parts.values()))])
    report.write_text(folder / "report" / "artifact.tsv", report.tsv(table))
    told = ", ".join(f"{part} {size:,}" for part, size in parts.items())
    console.print(f"the small model has {sum(parts.values()):,} bytes: {told}", highlight=False, soft_wrap=True)
    return {f"artifact_bytes_{part}": size for part, size in parts.items()}


def distinct_values(module: lightning.LightningModule) -> int | None:
    """How many different numbers the weights are that are not zero, all parameters together; of too many to sort them
    in a moment, nobody asks."""
    weights = [parameter.detach() for parameter in module.parameters()]
    if not 0 < sum(int(own.count_nonzero()) for own in weights) <= MOST_VALUES:
        return None
    return len(torch.cat([own[own != 0].double() for own in weights]).unique())


def log_hyperparameters(cfg: DictConfig, metrics: dict[str, object], folder: Path) -> None:
    """TensorBoard's table of runs: the choices of each beside its final figures."""
    figures = {f"final/{key}": value for key, value in metrics.items() if isinstance(value, int | float)}
    choices = {key: str(value) for key, value in HydraConfig.get().runtime.choices.items() if "hydra/" not in key}
    board = TensorBoardLogger(folder, name="tensorboard", version="", default_hp_metric=False)
    board.log_hyperparams({**choices, "strength": cfg.reg.strength, "lr": cfg.solver.lr, "batch": cfg.batch}, figures)
    board.finalize("success")


def quiet() -> None:
    """Lightning's advice is about data loaders and loggers that are not used here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    quiet()
    keep_pages()
    console, folder = Console(quiet=not first_process()), Path(HydraConfig.get().runtime.output_dir)
    try:
        train(cfg, folder, console)
    except (UserError, InstantiationException, MisconfigurationException, MissingMandatoryValue) as error:
        reason = error.__cause__ if isinstance(error.__cause__, UserError) else error
        if isinstance(error, MissingMandatoryValue):
            reason = f"{error.full_key} needs a value"
        print(f"error: {' '.join(str(reason).split())}", file=sys.stderr)
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise  # Hydra goes on with the other runs before it fails
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(f"error: no room to write in {folder} ({error.strerror})", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Stopped as stopped:
        console.print(f"{stopped}; continue with ckpt_path=last", soft_wrap=True)
        sys.exit(128 + stopped.signum)


if __name__ == "__main__":
    main()
