"""One run, from its options to its small model: prepare the data, fit the stages (or search), test, export, report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from structsparse.artifacts.quantization import Small
from structsparse.base.errors import UserError
from structsparse.training import stage as recipe
from structsparse.training.compose import stages_of
from structsparse.training.finish import finish
from structsparse.training.run_folder import first_process, resume_into
from structsparse.training.search import grid, path
from structsparse.training.search import reweighting as rounds
from structsparse.training.task import Data, Task


def train(cfg: DictConfig, choices: Mapping[str, str], folder: Path, console: Console) -> dict[str, object]:
    """One training run, from the corpus to the small model; returns the figures of `metrics.json`.

    `cfg` is the composed configuration, `choices` the option of each of its groups (`{"task": "ner", ...}`), `folder`
    the run folder, which all results are written to."""
    begin = time.perf_counter()
    task = instantiate(cfg.task, _convert_="all")
    small = Small.of(OmegaConf.to_container(cfg.artifact, resolve=True))
    features = instantiate(cfg.features, _convert_="all")  # plain, but for groups of words that are features
    data = task.prepare(instantiate(cfg.data), features, instantiate(cfg.filter), cfg.cache)
    seconds = {"seconds_prepare": time.perf_counter() - begin}
    task.check_small(small)
    for line in data.describe():
        console.print(line, highlight=False, soft_wrap=True)
    resume = resume_into(folder, cfg.ckpt_path, OmegaConf.to_container(cfg, resolve=True))
    checkpoints, chosen = folder / "checkpoints", {}
    if cfg.grid is not None:
        outcomes, chosen = search_grid(cfg, task, data, folder, checkpoints, resume, console)
    elif cfg.path is None:
        outcomes = []
        stages = stages_of(cfg, data.metric, folder, console)
        for stage in stages[1:]:
            rounds.foresee(stage, task, data)
        for stage in stages:
            before = recipe.refuse_dead(task, outcomes[-1]) if outcomes else None
            outcomes.append(rounds.run(stage, task, data, before, checkpoints / stage.name, resume))
        recipe.refuse_dead(task, outcomes[-1])
    else:
        outcomes = follow_path(cfg, task, data, folder, checkpoints, resume, console)
    return finish(cfg, choices, task, data, outcomes, small, seconds | chosen, folder, console)


def search_grid(
    cfg: DictConfig, task: Task, data: Data, folder: Path, checkpoints: Path, resume: bool, console: Console
) -> tuple:
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
    points, best, outcomes = grid.search(stages_at, task, data, wanted, checkpoints, resume, console, cfg.grid_by)
    if first_process():
        grid.write(folder / "report", points, best)
    chosen = {f"chosen_{key}": value for key, value in best.options.items()}
    return outcomes, chosen | {"seconds_grid": sum(point.row["seconds"] for point in points)}


def follow_path(
    cfg: DictConfig, task: Task, data: Data, folder: Path, checkpoints: Path, resume: bool, console: Console
) -> list:
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
    points, best = path.walk(stages_at, task, data, wanted, checkpoints, resume, console)
    if first_process():
        path.write(folder / "report", points, best, data.metric)
    return best.outcomes
