"""A training run from configuration to artifact: prepare the data, fit the stages or search, then finish."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from structsparse.artifacts.quantization import ArtifactOptions
from structsparse.base.errors import UserError
from structsparse.training import fit, legality
from structsparse.training.automatic import AUTO, Automatic, is_automatic
from structsparse.training.compose import stages_of
from structsparse.training.data import Data
from structsparse.training.finish import RunLabels, finish
from structsparse.training.run_folder import first_process, resume_into
from structsparse.training.search import grid, path, path_report, reweighting
from structsparse.training.search.strengths import shares
from structsparse.training.stage import Stage, StageResult
from structsparse.training.task import Task


def train(cfg: DictConfig, choices: Mapping[str, str], folder: Path, console: Console) -> dict[str, object]:
    """Training run, from the corpus to the artifact; returns the figures of `metrics.json`.

    `cfg` is the composed configuration. `choices` holds the chosen option of each configuration group, such as
    `{"task": "ner"}`. All results are written to the run folder `folder`."""
    begin = time.perf_counter()
    task: Task = instantiate(cfg.task, _convert_="all")
    for stage in stages_of(cfg, "", folder, console):
        legality.check(task, stage)  # checked before any data are read
    search = Automatic(cfg, choices) if cfg.grid is None and is_automatic(cfg) else None
    small = ArtifactOptions.of(OmegaConf.to_container(cfg.artifact, resolve=True))
    task.check_rounding(small)
    features = instantiate(cfg.features, _convert_="all")
    if features.get("fits", 0) is None:
        features["fits"] = len(cfg.recipe) if search is None else search.fits
    data = task.prepare(instantiate(cfg.data), features, instantiate(cfg.filter), cfg.cache)
    seconds = {"seconds_prepare": time.perf_counter() - begin}
    for line in data.describe():
        console.print(line, highlight=False, soft_wrap=True)
    resume = resume_into(folder, cfg.ckpt_path, OmegaConf.to_container(cfg, resolve=True))
    results, chosen, data = _Run(cfg, search, task, data, folder, resume, console).results()
    rate = {"lr": cfg.solver.lr} if "lr" in cfg.solver else {}
    numbers = {"strength": cfg.reg.strength, **rate, "batch": cfg.batch}
    labels = RunLabels(choices, cfg.seed, numbers)
    return finish(labels, task, data, results, small, seconds | chosen, folder, console)


@dataclass(frozen=True)
class _Run:
    """Training run with prepared data, and three ways to fit the stages: once, over a grid, or along a path."""

    cfg: DictConfig
    search: Automatic | None
    task: Task
    data: Data
    folder: Path
    resume: bool
    console: Console

    @property
    def checkpoints(self) -> Path:
        """Training run: the folder with the checkpoints of all stages."""
        return self.folder / "checkpoints"

    def results(self) -> tuple[list[StageResult], dict[str, object], Data]:
        """Training run: the results of all stages, the figures of a search if there was one, and the data.

        If the task has variants of the data, a search may choose one. The returned data are then this variant."""
        if self.cfg.grid is not None:
            return *self.search_grid(), self.data
        if self.search is not None:
            outcome = self.search.run(self.task, self.data, self.folder, self.resume, self.console)
            return outcome.results, outcome.figures, outcome.data or self.data
        return (self.fit_stages() if self.cfg.path is None else self.follow_path()), {}, self.data

    def stages(self, cfg: DictConfig) -> list[Stage]:
        """Training run: the stages of the recipe under the configuration `cfg`."""
        return stages_of(cfg, self.data.metric, self.folder, self.console)

    def fit_stages(self) -> list[StageResult]:
        """Training run: fit the stages of the recipe in order.

        A stage that makes every weight zero is an error."""
        stages, results = self.stages(self.cfg), []
        for stage in stages[1:]:
            reweighting.validate(stage, self.task, self.data)
        for stage in stages:
            before, here = results[-1] if results else None, self.checkpoints / stage.name
            result = reweighting.run(stage, self.task, self.data, before, here, self.resume)
            results.append(fit.refuse_dead(self.task, result))
        return results

    def search_grid(self) -> tuple[list[StageResult], dict[str, object]]:
        """Training run: the results of the grid point that is best on dev, and the options of that point."""
        cfg = self.cfg
        if cfg.path is not None or cfg.data.get("join_dev"):
            raise UserError("grid: dev chooses among its points, so path must be null and data.join_dev false")
        requested = OmegaConf.to_container(cfg.grid, resolve=True) if OmegaConf.is_config(cfg.grid) else cfg.grid
        points, best, results = grid.search(
            self._stages_with, self.task, self.data, requested, self.checkpoints, self.resume, self.console, cfg.grid_by
        )
        if first_process():
            grid.write(self.folder / "report", points, best)
        chosen = {f"chosen_{key}": value for key, value in best.options.items()}
        return results, chosen | {"seconds_grid": sum(point.row["seconds"] for point in points)}

    def _stages_with(self, options: grid.Options) -> list[Stage]:
        """Training run: the stages of the recipe, with the options of a grid point."""
        cfg = self.cfg.copy()
        cfg.grid = None
        for key in ("squares", "group"):  # parts of the penalty that are `auto` and not in the grid get strength 0
            if cfg.reg.get(key) == AUTO:
                cfg.reg[key] = 0.0
        for key, value in options.items():
            try:
                OmegaConf.update(cfg, key, value, merge=False)
            except OmegaConfBaseException:
                raise UserError(f"grid: there is no option {key}") from None
        return self.stages(cfg)

    def follow_path(self) -> list[StageResult]:
        """Training run: the results at the strength of the regularization path that is best on dev."""
        cfg = self.cfg
        if cfg.data.get("join_dev"):
            raise UserError("data.join_dev=true: dev, trained on as well, cannot choose a strength of the path")
        if cfg.reg.get("ridge"):
            raise UserError(f"reg.ridge={cfg.reg.ridge} has the unit of one strength; a path has many: set it to 0")
        if cfg.reg.relative is not True and not OmegaConf.is_list(cfg.path):
            raise UserError(
                f"path={cfg.path} goes down to reg.strength as a share: reg.relative must be true; or list shares"
            )
        listed = OmegaConf.to_object(cfg.path) if OmegaConf.is_list(cfg.path) else cfg.path
        last = cfg.search.groups.rules.last if cfg.reg.strength == AUTO else cfg.reg.strength
        falling = shares(listed, last)
        points, best = path.walk(
            self._stages_at, self.task, self.data, falling, self.checkpoints, self.resume, self.console
        )
        if first_process():
            rows = [point.row for point in points]
            path_report.write(self.folder / "report", rows, best.row, self.data.metric)
        return best.results

    def _stages_at(self, strength: float, terms: Mapping[str, float] | None) -> list[Stage]:
        """Training run: the stages of the recipe at one strength of a regularization path.

        In the first stage, the penalty of `reg` gets the absolute strength `strength`. The penalties of `also` get the
        absolute strengths in `terms`, by name. If `terms` is None, they keep the configured strengths."""
        first, *rest = self.stages(self.cfg)
        main, *further = first.terms
        main = replace(main, strength=strength, relative=False)
        if terms is not None:
            further = [replace(term, strength=terms[term.name], relative=False) for term in further]
        return [replace(first, terms=[main, *further]), *rest]
