"""Automatic strength: `reg.strength=auto` and `path=auto` search for the strength of the penalty by the score on dev.

There are three searches. Their stages and rules are in conf/search.

- `group_search`: for penalties of groups
- `entry_search`: for penalties of single entries
- `ridge_search`: for penalties of text classifiers that have squares and a sparse part (norms or absolute values)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from structsparse.base.errors import UserError
from structsparse.training.compose import changed, stage_of
from structsparse.training.data import Data
from structsparse.training.run_folder import first_process
from structsparse.training.search import path_report
from structsparse.training.search.candidates import Outcome, Rules, Setting
from structsparse.training.search.choose import write_rows
from structsparse.training.search.entry_search import EntrySearch
from structsparse.training.search.group_search import GroupSearch
from structsparse.training.search.ridge_search import RidgeSearch
from structsparse.training.stage import Stage
from structsparse.training.task import Task

AUTO = "auto"  # value of reg.strength and path: dev chooses
STRENGTHS = "strength", "mix", "squares", "group"  # options of penalties that may be `auto`


def is_automatic(cfg: DictConfig) -> bool:
    """Automatic strength: whether dev chooses it: `path=auto`, or an option `auto` of `reg` without path or budget."""
    return cfg.path == AUTO or (cfg.path is None and bool(_open(cfg)) and not cfg.reg.get("budget"))


def _open(cfg: DictConfig) -> list[str]:
    """Automatic strength: the options of the penalty that are `auto`."""
    return [key for key in STRENGTHS if cfg.reg.get(key) == AUTO]


@dataclass
class Automatic:
    """Automatic strength: the search that a configuration asks for, with the stages that it has composed so far."""

    cfg: DictConfig
    choices: Mapping[str, str]  # the choice in each configuration group

    def __post_init__(self) -> None:
        by_penalty = "entries" if self.cfg.reg.get("groups") is None else "groups"
        self.search = self.cfg.search[self.cfg.search.models.get(self.choices["model"], by_penalty)]
        maker = (self.cfg.reg.get("groups") or {}).get("_target_", "structsparse.")
        self.own_groups = maker.startswith("structsparse.")  # other groups may not support tables of observed pairs
        self.stages: dict[tuple, Stage] = {}  # cache of composed stages, as composing one takes as long as a short fit
        self._check()
        choose = self.search.get("choose", {}).get(self.cfg.choose, self.cfg.choose)
        self.rules = Rules(**self.search.rules, choose=choose)

    @property
    def fits(self) -> int:
        """Automatic strength: the approximate time of the search, as a number of fits of all features."""
        return self.search.get("fits", 1)

    def run(self, task: Task, data: Data, folder: Path, resume: bool, console: Console) -> Outcome:
        """Automatic strength: run the search and write its report; returns the outcome."""
        setting = self.setting(task, data, folder, resume, console)
        if "refits" in self.search:
            outcome = GroupSearch(setting, OmegaConf.to_container(self.search.refits)).run()
        elif "squares" in self.cfg.reg or "mix" in _open(self.cfg):
            outcome = RidgeSearch(setting, *self._parts()).run()
        else:
            outcome = EntrySearch(setting).run()
        if first_process():
            path_report.write(folder / "report", outcome.path, outcome.chosen, data.metric)
            path_report.log(folder, outcome.path, outcome.chosen, data.metric, outcome.norms)
            if outcome.refits:
                write_rows(folder / "report" / "refits", outcome.refits, outcome.chosen_refit)
        return outcome

    def setting(self, task: Task, data: Data, folder: Path, resume: bool, console: Console) -> Setting:
        """Automatic strength: the `Setting` of the search, from these arguments and the configuration."""
        self.metric, self.folder, self.console = data.metric, folder, console
        return Setting(self._stage, self.rules, task, data, folder / "checkpoints", resume, console)

    def _parts(self) -> tuple[float | None, float | None, dict[str, object]]:
        """Automatic strength: for a ridge search, the strengths of squares and sparse part, and fixed penalty options.

        A strength is None if dev chooses it."""
        reg = self.cfg.reg
        if "squares" not in reg:
            return None, None, {}
        squares, sparse = (None if reg[key] == AUTO else float(reg[key]) for key in ("squares", "group"))
        if reg.groups is None:
            sparse = 0.0
        return squares, sparse, {"strength": 1.0 if reg.strength == AUTO else reg.strength}

    def _check(self) -> None:
        """Automatic strength: refuse options under which dev cannot choose."""
        if self.cfg.data.get("join_dev"):
            raise UserError("data.join_dev=true: dev, trained on as well, cannot choose a strength; give reg.strength")
        if self.choices["reg"] == "none":
            raise UserError("path=auto: reg=none has no strength for dev to choose")
        for part, choices in self.search.needs.items():
            if self.choices[part] not in choices:
                raise UserError(
                    f"reg.strength=auto and path=auto are for {part}={', '.join(choices)}, not for "
                    f"{part}={self.choices[part]}; give a number, such as reg.strength=0.01"
                )

    def _stage(self, name: str, reg: Mapping[str, object]) -> Stage:
        """Automatic strength: the stage `name` of the search, with the options `reg` of its penalty changed."""
        key = name, *reg.items()
        if key not in self.stages:
            kept = dict(self.search.stages[name])
            for part, choice in self.cfg.search.replaces.items():
                if self.choices[part] != choice or not self.own_groups:
                    kept.pop(part, None)
            changes = OmegaConf.merge(kept, {"reg": dict(reg)} if reg else {})
            self.stages[key] = stage_of(name, changed(self.cfg, changes), self.metric, self.folder, self.console)
        return self.stages[key]
