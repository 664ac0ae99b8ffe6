"""Lazy imports: public names of a package that are imported on first use (PEP 562).

Importing the package itself therefore takes almost no time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Lazy imports: make the functions `__getattr__` and `__dir__` of a package, which import on first use.

    `homes` maps each module of the package to the public names that it defines. `modules` has the names of the modules
    that are themselves public names of the package."""
    home = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        """Lazy import: import one public name on first use, and store it in the package."""
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)  # later uses do not call this function
        return value

    return get, lambda: sorted(sys.modules[package].__all__)
