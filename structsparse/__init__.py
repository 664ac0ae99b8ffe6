"""Structured predictors under group-sparsity penalties.

    model = structsparse.load("runs/.../model")      # .predict .nbest .marginals .evaluate

Everything is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from structsparse.base.errors import UserError
from structsparse.base.version import VERSION as __version__

if TYPE_CHECKING:
    from structsparse.tasks.registry import load

_LAZY = {"load": "structsparse.tasks.registry"}  # public name -> the module that has it
__all__ = ["UserError", "__version__", "load"]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'structsparse' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value  # the next access finds it at once
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
