"""Partial applications: the class or function behind one."""

from collections.abc import Callable
from functools import partial


def callee(chosen: Callable) -> Callable:
    """The class or function that a partial application calls in the end; anything else as it is."""
    while isinstance(chosen, partial):
        chosen = chosen.func
    return chosen
