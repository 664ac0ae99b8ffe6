"""Mistakes in the options of a training: which exceptions are the user's mistakes, and an error message for each."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from structsparse.base.configuration import configuration_folder
from structsparse.base.errors import UserError
from structsparse.training.options import SIZES

FULL_ERROR = "HYDRA_FULL_ERROR"  # environment variable of Hydra


class Told(Exception):
    """Exception for a mistake of the user in one of several runs, after its error message was printed."""


@contextmanager
def hydra_errors_raised() -> Iterator[None]:
    """Within this context, Hydra raises its exceptions and those of a training, in place of printing them."""
    before = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = before


def mistakes() -> tuple[type[Exception], ...]:
    """The exception classes that `structsparse train` reports as mistakes of the user."""
    from hydra.errors import HydraException
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from omegaconf.errors import MissingMandatoryValue

    return UserError, HydraException, MisconfigurationException, MissingMandatoryValue


def sentence(error: Exception, options: Sequence[str]) -> str:
    """The error message of `structsparse train` for an exception, in one line."""
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue

    cause = error.__cause__
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} needs a value"
    if isinstance(error, MissingConfigException) and error.options:
        return _unknown_choice(*error.missing_cfg_file.split("/", 1), error.options)
    if isinstance(error, OverrideParseException):
        return f"{error.override} is no option: {error.message.splitlines()[0]}; expected KEY=VALUE"
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        return _unknown_key(cause.full_key, options)
    return " ".join(str(cause if isinstance(cause, UserError) else error).split())


def _unknown_choice(group: str, choice: str, known: Sequence[str]) -> str:
    """The error message for a choice that a configuration group does not have."""
    known = [*known, *SIZES] if group == "preset" else known
    near = difflib.get_close_matches(choice, known, 1)
    meant = f"; did you mean {group}={near[0]}?" if near else "."
    return f"{group}={choice} is not known{meant} Known are {', '.join(known)}"


def _unknown_key(key: str, options: Sequence[str]) -> str:
    """The error message for an option that does not exist; it suggests the option with the most similar name."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    parent, _, name = key.rpartition(".")
    others = [option for option in options if "=" in option and option.lstrip("+~").partition("=")[0] != key]
    with initialize_config_dir(str(configuration_folder()), version_base="1.3"):
        try:
            cfg = compose("config", others)
        except HydraException:
            return f"{key} is no option"
    node = OmegaConf.select(cfg, parent) if parent else cfg
    near = difflib.get_close_matches(name, [str(k) for k in node], 1) if OmegaConf.is_dict(node) else []
    meant = f"; did you mean {parent}{'.' * bool(parent)}{near[0]}?" if near else "."
    return f"{key} is no option of this run{meant} A new key is given as +{key}=VALUE"
