"""Train a structured predictor under a penalty that switches off whole groups of weights.

python train.py                                     entities on the planted corpus, under a group lasso
python train.py task=chunking data=conll2000 reg=l1
python train.py --help                              all options
"""

from __future__ import annotations

import errno
import logging
import sys
import warnings
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig
from omegaconf.errors import MissingMandatoryValue
from rich.console import Console

from structsparse.base.errors import UserError
from structsparse.base.large_arrays import keep_pages
from structsparse.training.callbacks.checkpoints import Stopped
from structsparse.training.compose import hide_bases
from structsparse.training.options import check_options
from structsparse.training.run import train
from structsparse.training.run_folder import first_process

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def quiet() -> None:
    """Lightning's advice is about data loaders and loggers that are not used here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")


def main() -> None:
    """Compose the options of the command line and run them; renamed options are refused first."""
    try:
        check_options(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    hide_bases()
    run()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def run(cfg: DictConfig) -> None:
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
