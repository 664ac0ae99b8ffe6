"""Public names of a package that are imported on first use (PEP 562), so that importing the package costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, names: Mapping[str, str], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: `names` maps public names to modules; `modules` are public modules."""

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name]), name)
        setattr(sys.modules[package], name, value)  # the next use finds it without this function
        return value

    def listed() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, listed
