"""Composing the stages of a recipe, with penalties and trainers, from the Hydra configuration of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import lightning
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.utils import instantiate
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.training.callbacks.checkpoints import WholeFiles
from structsparse.training.callbacks.monitor import SparsityMonitor
from structsparse.training.callbacks.progress import EpochLines
from structsparse.training.devices import accelerator
from structsparse.training.legality import ignored_groups
from structsparse.training.run_folder import learning_options
from structsparse.training.search.choose import LAST, ONE_SE
from structsparse.training.stage import Stage
from structsparse.training.terms import Term

TERM_OPTIONS = ("strength", "relative", "parameters", "groups", "nonnegative", "ridge")
# options of `reg` that belong to the training stage, not to the penalty
SCHEDULE_OPTIONS = ("every", "warmup", "budget", "freeze", "reweight", "admm")
BEFORE_BUDGET = 0.01  # strength until the first cut to a budget, as a share of the critical strength
BASE = "_"  # the first letter of names of files and folders in conf/ that only serve to be included by others


@cache
def hide_bases() -> None:
    """Composed configuration: hide the shared base files of conf/ from the choices that Hydra lists.

    Hydra lists the choices in `--help` and in error messages."""
    Plugins.instance()  # registers Hydra's kinds of configuration sources
    for scheme in ("file", "pkg"):
        source = SourcesRegistry.instance().resolve(scheme)
        source.list = _without_bases(source.list)


def _without_bases(listed: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Composed configuration: the method `list` of a Hydra configuration source, changed to omit base files."""

    def list_choices(self, config_path: str, results_filter=None) -> list[str]:
        """Composed configuration: the names of the choices in a folder of conf/, without base files."""
        return [name for name in listed(self, config_path, results_filter) if not name.startswith(BASE)]

    return list_choices


def stages_of(cfg: DictConfig, metric: str, folder: Path, console: Console) -> list[Stage]:
    """Composed configuration: compose all stages of the recipe.

    `metric` is the score on dev that the console lines of each stage show."""
    return [stage_of(name, changed(cfg, changes), metric, folder, console) for name, changes in cfg.recipe.items()]


def check_groups_used(cfg: DictConfig, options: Sequence[str], choices: Mapping[str, str]) -> None:
    """Composed configuration: refuse groups= on the command line if no penalty refers to the groups.

    `options` are those of the command line; `choices` holds the chosen option of each configuration group."""
    typed = any(option.startswith("groups=") for option in options)
    if typed and "${groups}" not in str(OmegaConf.to_container(cfg, resolve=False)):
        raise ignored_groups(choices["groups"], cfg.groups["_target_"], choices["reg"])


def changed(cfg: DictConfig, changes: DictConfig | None) -> DictConfig:
    """Composed configuration: the configuration of one stage, with the changes that the recipe makes.

    A new value replaces the old one. Only a mapping without `_target_` is merged into the old mapping. A value that is
    the option itself, such as `reg: ${reg}`, changes nothing."""
    stage = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    typed = OmegaConf.to_container(changes, resolve=False) if changes else {}
    for key, value in (changes or {}).items():
        if key not in stage:
            raise UserError(f"recipe: {key!r} is no option of a stage; there are {', '.join(stage)}")
        if typed[key] == f"${{{key}}}":
            continue
        replaces = not isinstance(value, DictConfig) or "_target_" in value
        stage[key] = value if replaces else OmegaConf.merge(stage[key], value)
    return stage


def stage_of(name: str, cfg: DictConfig, metric: str, folder: Path, console: Console) -> Stage:
    """Composed configuration: compose one stage; `cfg` already includes the changes of the recipe."""
    solver, reg = cfg.solver.copy(), cfg.reg.copy()
    final_lr = solver.pop("final_lr", 1.0)
    choose = LAST if cfg.choose == ONE_SE else cfg.choose  # one_se is for strengths; within a fit it means last
    if cfg.data.get("join_dev") and (choose != LAST or cfg.patience is not None):
        stop = "choose=last patience=null"
        raise UserError(f"data.join_dev=true: dev, trained on as well, cannot choose; stage {name} needs {stop}")
    schedule = {key: reg.pop(key, None) for key in SCHEDULE_OPTIONS}
    if schedule["budget"] is not None and reg.get("strength") == "auto":
        reg.strength = BEFORE_BUDGET
    further = [term_of(f"also.{key}", options) for key, options in (cfg.also or {}).items()]
    options = learning_options(OmegaConf.to_container(cfg, resolve=True))
    return Stage(
        name=name, scorer=instantiate(cfg.model), loss=instantiate(cfg.loss), optimizer=instantiate(solver),
        final_lr=final_lr, terms=[term_of("reg", reg), *further],
        batch=cfg.batch, seed=cfg.seed, choose=choose, warm=cfg.warm, survivors=cfg.survivors,
        patience=cfg.patience,
        trainer=partial(trainer_of, name, cfg, metric, folder, console),
        options=options, **schedule,
    )  # fmt: skip


def term_of(name: str, reg: DictConfig) -> Term:
    """Composed configuration: compose a penalty term (penalty, groups and parameters) from its options `reg`.

    `name` is the place of these options in the configuration: `reg` or `also.NAME`."""
    for key in OmegaConf.missing_keys(reg):
        raise UserError(f"{key.removeprefix('reg.')} needs a value")
    reg = reg.copy()
    options = {key: reg.pop(key, None) for key in TERM_OPTIONS}
    for key in SCHEDULE_OPTIONS:
        reg.pop(key, None)
    groups = options.pop("groups")
    if isinstance(strength := options.get("strength"), str) and strength != "auto":
        raise UserError(f"{name}.strength={strength}: expected a finite number of at least 0, or auto")
    return Term(name, instantiate(reg), groups=None if groups is None else instantiate(groups), **options)


def trainer_of(
    name: str,
    cfg: DictConfig,
    metric: str,
    folder: Path,
    console: Console,
    *,
    before: Sequence[lightning.Callback],
    after: Sequence[lightning.Callback],
    penalties: Mapping[str, Penalty],
    host_only: str | None,
    quiet: bool = False,
) -> lightning.Trainer:
    """Composed configuration: compose the Lightning trainer of the stage called `name`.

    Callbacks run in this order: `before`, callbacks that show progress, `after`. `host_only` is the name of a solver or
    model that runs on the CPU only, if there is one. If `quiet`, neither TensorBoard logs nor console lines are
    written."""
    monitor = SparsityMonitor(penalties, name)
    progress = [] if quiet else [monitor, EpochLines(monitor, metric, console)]
    options = OmegaConf.to_container(cfg.trainer, resolve=True)
    options["accelerator"] = accelerator(options["accelerator"], host_only, Console(quiet=True) if quiet else console)
    try:
        return lightning.Trainer(
            **options,
            callbacks=[*before, *progress, *after],
            plugins=[WholeFiles()],
            logger=False if quiet else TensorBoardLogger(folder, name="tensorboard", version=""),
            default_root_dir=folder, use_distributed_sampler=False,
            enable_checkpointing=False, enable_progress_bar=False,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UserError(f"trainer: {error}") from error
