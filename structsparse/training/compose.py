"""From the options of a run to the stages of its recipe, their penalties and their trainers."""

from __future__ import annotations

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
from structsparse.training.callbacks.checkpoints import WholeFiles
from structsparse.training.callbacks.monitor import SparsityMonitor
from structsparse.training.callbacks.progress import EpochLines
from structsparse.training.run_folder import learning_options
from structsparse.training.stage import Stage
from structsparse.training.terms import Term

TERM_KNOBS = ("strength", "relative", "parameters", "groups", "nonnegative", "ridge")
SCHEDULE_KNOBS = ("every", "warmup", "budget", "freeze", "reweight", "admm")
BASE = "_"  # files and folders of conf/ that begin with it are shared by several choices; they are no choices


@cache
def hide_bases() -> None:
    """Leave the bases of conf/ out of the choices that `--help`, completion and error messages list."""
    Plugins.instance()  # registers the kinds of sources
    for scheme in ("file", "pkg"):
        source = SourcesRegistry.instance().resolve(scheme)
        source.list = _without_bases(source.list)


def _without_bases(listed):
    """The method `list` of a configuration source, without names of bases."""

    def list_choices(self, config_path: str, results_filter=None) -> list[str]:
        return [name for name in listed(self, config_path, results_filter) if not name.startswith(BASE)]

    return list_choices


def stages_of(cfg: DictConfig, metric: str, folder: Path, console: Console) -> list[Stage]:
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


def stage_of(name: str, cfg: DictConfig, metric: str, folder: Path, console: Console) -> Stage:
    solver, reg = cfg.solver.copy(), cfg.reg.copy()
    final_lr = solver.pop("final_lr", 1.0)
    if cfg.data.get("join_dev") and (cfg.choose != "last" or cfg.patience is not None):
        stop = "choose=last patience=null"
        raise UserError(f"data.join_dev=true: dev, trained on as well, cannot choose; stage {name} needs {stop}")
    schedule = {key: reg.pop(key, None) for key in SCHEDULE_KNOBS}
    others = [term_of(f"also.{key}", other) for key, other in (cfg.also or {}).items()]
    options = learning_options(OmegaConf.to_container(cfg, resolve=True))
    return Stage(
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
