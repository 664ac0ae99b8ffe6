"""The subcommand `structsparse train` and the function `structsparse.train`: train a model, configured by Hydra.

Heavy modules are imported after the arguments have been checked."""

from __future__ import annotations

import errno
import logging
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structsparse.base.configuration import configuration_folder
from structsparse.base.errors import UserError
from structsparse.cli.mistakes import Told, hydra_errors_raised, mistakes, sentence
from structsparse.cli.train_help import help_text
from structsparse.tasks import registry
from structsparse.training.options import check_options, expanded

if TYPE_CHECKING:
    from omegaconf import DictConfig

PURPOSE = "train a model; options are KEY=VALUE"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str]) -> int:
    """Subcommand train: train with the options of the command line; returns the exit status."""
    if {"--help", "-h"} & {*arguments}:
        print(help_text(arguments), end="")
        return 0
    try:
        check_options(arguments)  # refuses options of earlier versions
        arguments = expanded(arguments)
    except UserError as error:
        return _failed(str(error))
    import hydra

    from structsparse.training.compose import hide_bases

    hide_bases()
    command = sys.argv
    folder = str(configuration_folder())

    def job(cfg: DictConfig) -> None:
        """Subcommand train: run one training; Hydra calls this function with the composed configuration."""
        sys.argv = command  # Lightning starts other processes of a distributed run with this command line
        _run(cfg)

    overrides = [a for a in arguments if a.startswith("~") or ("=" in a and not a.startswith("-"))]
    flags = [argument for argument in arguments if argument not in overrides]
    sys.argv = [command[0], *flags, *overrides]  # options KEY=VALUE must be consecutive for argparse
    try:
        with hydra_errors_raised():
            hydra.main(version_base="1.3", config_path=folder, config_name="config")(job)()
    except Told:
        return 2
    except mistakes() as error:
        return _failed(sentence(error, overrides))
    except Exception:  # a defect of the program, not a mistake of the user
        traceback.print_exc()
        return 1
    finally:
        sys.argv = command
    return 0


def _run(cfg: DictConfig) -> None:
    """Subcommand train: run one training; a mistake of the user ends in a one-line message and exit status 2."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from rich.console import Console

    from structsparse.base.allocator import keep_freed_memory
    from structsparse.training.callbacks.checkpoints import Stopped
    from structsparse.training.compose import check_groups_used
    from structsparse.training.run import train
    from structsparse.training.run_folder import first_process

    silence_lightning()
    keep_freed_memory()
    console, folder = Console(quiet=not first_process()), Path(HydraConfig.get().runtime.output_dir)
    hydra = HydraConfig.get()
    try:
        check_groups_used(cfg, OmegaConf.to_container(hydra.overrides.task, resolve=False), hydra.runtime.choices)
        train(cfg, hydra.runtime.choices, folder, console)
    except mistakes() as error:
        _failed(sentence(error, ()))
        if hydra.mode == RunMode.MULTIRUN:
            raise Told from error  # Hydra catches it, finishes the other runs, and raises it again
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        sys.exit(_failed(f"no room to write in {folder} ({error.strerror})"))
    except KeyboardInterrupt:
        sys.exit(130)
    except Stopped as stopped:
        console.print(f"{stopped}; continue with ckpt_path=last", soft_wrap=True)
        sys.exit(128 + stopped.signum)


@dataclass(frozen=True)
class TrainingResult:
    """Result of the function `train`: the contents of `metrics.json`, the run folder, and the trained model."""

    metrics: Mapping[str, Any]
    folder: Path

    @cached_property
    def model(self) -> registry.Predictor:
        """Result of the function `train`: the trained model, loaded from the run folder."""
        return registry.load(self.folder)


def train(
    options: Sequence[str] = (),
    folder: str | Path | None = None,
    config_dir: str | Path | None = None,
    quiet: bool = False,
) -> TrainingResult:
    """The function `structsparse.train`: train a model in this process, with the options of `structsparse train`.

    Example: `train(["task=ner", "reg=group_lasso"])`. Results are written to `folder` (default: a new folder in
    `runs`). `config_dir` is a folder with further yaml files of options. With `quiet`, nothing is printed. Mistakes of
    the user raise UserError."""
    if isinstance(options, str):
        raise UserError(f"options={options!r} is a string, expected a list of strings such as [{options!r}]")
    check_options(options)
    from rich.console import Console

    from structsparse.base.allocator import keep_freed_memory
    from structsparse.training import run
    from structsparse.training.compose import check_groups_used

    silence_lightning()
    keep_freed_memory()
    try:
        cfg, choices, folder = _composed(expanded(options), folder, config_dir)
        check_groups_used(cfg, options, choices)
        return TrainingResult(run.train(cfg, choices, folder, Console(quiet=quiet)), folder)
    except mistakes() as error:
        raise UserError(sentence(error, options)) from error


def _composed(options: list[str], folder: str | Path | None, config_dir: str | Path | None) -> tuple:
    """Function `train`: compose the configuration from the options; writes configuration and options to the run folder.

    Returns the configuration, the choice in each config group, and the path of the run folder."""
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf, open_dict

    searched = [] if config_dir is None else [f"hydra.searchpath=['file://{Path(config_dir).resolve()}']"]
    with initialize_config_dir(str(configuration_folder()), version_base="1.3"):
        cfg = compose("config", [*options, *searched], return_hydra_config=True)
        before = HydraConfig.instance().cfg
        try:
            HydraConfig.instance().set_config(cfg)
            folder = Path(cfg.hydra.run.dir if folder is None else folder)
        finally:
            HydraConfig.instance().cfg = before
        choices = {key: str(value) for key, value in cfg.hydra.runtime.choices.items()}
    with open_dict(cfg):
        del cfg["hydra"]
    written = folder / ".hydra"
    written.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(cfg, written / "config.yaml")
    OmegaConf.save(OmegaConf.create(options), written / "overrides.yaml")
    return cfg, choices, folder


def _failed(reason: str) -> int:
    """Print an error message of `structsparse train` to standard error; returns exit status 2."""
    print(f"error: {reason}", file=sys.stderr)
    return 2


def silence_lightning() -> None:
    """Silence the messages of Lightning that do not apply to runs of `structsparse train`."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
