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
from structsparse.training.compose import changed, stage_of, stages_of
from structsparse.training.data import Data
from structsparse.training.finish import RunLabels, finish
from structsparse.training.run_folder import first_process, resume_into
from structsparse.training.search import grid, path, reweighting
from structsparse.training.search.candidates import Rules, Setting
from structsparse.training.search.choose import write_rows
from structsparse.training.search.entry_search import EntrySearch
from structsparse.training.search.group_search import GroupSearch
from structsparse.training.search.strengths import shares
from structsparse.training.stage import Stage, StageResult
from structsparse.training.task import Task

AUTO = "auto"  # value of reg.strength and path: dev chooses


def train(cfg: DictConfig, choices: Mapping[str, str], folder: Path, console: Console) -> dict[str, object]:
    """Training run, from the corpus to the artifact; returns the figures of `metrics.json`.

    `cfg` is the composed configuration. `choices` holds the chosen option of each configuration group, such as
    `{"task": "ner"}`. All results are written to the run folder `folder`."""
    begin = time.perf_counter()
    task: Task = instantiate(cfg.task, _convert_="all")
    for stage in stages_of(cfg, "", folder, console):
        legality.check(task, stage)  # checked before any data are read
    small = ArtifactOptions.of(OmegaConf.to_container(cfg.artifact, resolve=True))
    task.check_rounding(small)
    features = instantiate(cfg.features, _convert_="all")
    data = task.prepare(instantiate(cfg.data), features, instantiate(cfg.filter), cfg.cache)
    seconds = {"seconds_prepare": time.perf_counter() - begin}
    for line in data.describe():
        console.print(line, highlight=False, soft_wrap=True)
    resume = resume_into(folder, cfg.ckpt_path, OmegaConf.to_container(cfg, resolve=True))
    results, chosen = _Run(cfg, choices, task, data, folder, resume, console).results()
    rate = {"lr": cfg.solver.lr} if "lr" in cfg.solver else {}
    numbers = {"strength": cfg.reg.strength, **rate, "batch": cfg.batch}
    labels = RunLabels(choices, cfg.seed, numbers)
    return finish(labels, task, data, results, small, seconds | chosen, folder, console)


@dataclass(frozen=True)
class _Run:
    """Training run with prepared data, and three ways to fit the stages: once, over a grid, or along a path."""

    cfg: DictConfig
    choices: Mapping[str, str]
    task: Task
    data: Data
    folder: Path
    resume: bool
    console: Console

    @property
    def checkpoints(self) -> Path:
        """Training run: the folder with the checkpoints of all stages."""
        return self.folder / "checkpoints"

    def results(self) -> tuple[list[StageResult], dict[str, object]]:
        """Training run: the results of all stages, and the figures of the grid search if there was one."""
        if self.cfg.grid is not None:
            return self.search_grid()
        if self.automatic:
            return self.search_strength()
        return (self.fit_stages() if self.cfg.path is None else self.follow_path()), {}

    @property
    def automatic(self) -> bool:
        """Whether dev chooses the strength: `path=auto`, or `reg.strength=auto` without a path or a budget."""
        cfg = self.cfg
        return cfg.path == AUTO or (cfg.path is None and cfg.reg.get("strength") == AUTO and not cfg.reg.get("budget"))

    def search_strength(self) -> tuple[list[StageResult], dict[str, object]]:
        """The results at the strength that dev chooses, and the figures of the search."""
        search = self.cfg.search["entries" if self.cfg.reg.get("groups") is None else "groups"]
        self._check_search(search)
        rules = Rules(**search.rules, choose=self.cfg.choose)
        stages: dict[tuple, Stage] = {}  # composing a stage takes as long as a short fit

        def stage_of(name: str, reg: Mapping[str, object]) -> Stage:
            """A stage of the search for a strength, composed once."""
            key = name, *reg.items()
            if key not in stages:
                stages[key] = self._search_stage(search.stages[name], name, reg)
            return stages[key]

        setting = Setting(stage_of, rules, self.task, self.data, self.checkpoints, self.resume, self.console)
        by_groups = "refits" in search
        found = GroupSearch(setting, OmegaConf.to_container(search.refits)) if by_groups else EntrySearch(setting)
        outcome = found.run()
        if first_process():
            write_rows(self.folder / "report" / "path", outcome.path, outcome.chosen)
            if outcome.refits:
                write_rows(self.folder / "report" / "refits", outcome.refits, outcome.chosen_refit)
        return outcome.results, outcome.figures

    def _check_search(self, search: DictConfig) -> None:
        """Refuse options under which dev cannot choose a strength."""
        if self.cfg.data.get("join_dev"):
            raise UserError("data.join_dev=true: dev, trained on as well, cannot choose a strength; give reg.strength")
        for part, choices in search.needs.items():
            if self.choices[part] not in choices:
                raise UserError(
                    f"{part}={self.choices[part]} needs a number, such as reg.strength=0.01 (a share of the critical "
                    f"strength); reg.strength=auto is for {part}={', '.join(choices)}"
                )

    def _search_stage(self, options: DictConfig, name: str, reg: Mapping[str, object]) -> Stage:
        """A stage of the search for a strength, with changed options of its penalty."""
        replaced = [part for part, choice in self.cfg.search.replaces.items() if self.choices[part] == choice]
        kept = {key: value for key, value in options.items() if key in replaced or key not in self.cfg.search.replaces}
        changes = OmegaConf.merge(kept, {"reg": dict(reg)} if reg else {})
        return stage_of(name, changed(self.cfg, changes), self.data.metric, self.folder, self.console)

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
        falling = shares(listed, cfg.reg.strength)
        points, best = path.walk(
            self._stages_at, self.task, self.data, falling, self.checkpoints, self.resume, self.console
        )
        if first_process():
            path.write(self.folder / "report", points, best, self.data.metric)
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
