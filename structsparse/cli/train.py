"""`structsparse train`, which is also `python train.py`: one training run composed by Hydra, or several with -m.

Heavy modules are imported after the arguments are understood.
"""

from __future__ import annotations

import errno
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from structsparse.base.configuration import configuration_folder
from structsparse.base.errors import UserError
from structsparse.training.options import check_options

if TYPE_CHECKING:
    from omegaconf import DictConfig

PURPOSE = "train a model; options are KEY=VALUE"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str]) -> int:
    """Train as these arguments say; the exit status. Options of earlier versions are refused first."""
    try:
        check_options(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    import hydra

    from structsparse.training.compose import hide_bases

    hide_bases()
    command = sys.argv
    folder = str(configuration_folder())

    def job(cfg: DictConfig) -> None:
        sys.argv = command  # as it was, for Lightning to start further processes of a distributed run
        _run(cfg)

    sys.argv = [command[0], *arguments]
    try:
        hydra.main(version_base="1.3", config_path=folder, config_name="config")(job)()
    finally:
        sys.argv = command
    return 0


def _run(cfg: DictConfig) -> None:
    """One run. Mistakes that the user can correct end in one line and status 2."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import InstantiationException
    from hydra.types import RunMode
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from omegaconf.errors import MissingMandatoryValue
    from rich.console import Console

    from structsparse.base.allocator import keep_freed_memory
    from structsparse.training.callbacks.checkpoints import Stopped
    from structsparse.training.run import train
    from structsparse.training.run_folder import first_process

    quiet()
    keep_freed_memory()
    console, folder = Console(quiet=not first_process()), Path(HydraConfig.get().runtime.output_dir)
    try:
        train(cfg, HydraConfig.get().runtime.choices, folder, console)
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


def quiet() -> None:
    """Silence advice of Lightning about data loaders and loggers that are not used here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
