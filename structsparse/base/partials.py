"""Partial applications (`functools.partial`): the class or function that a partial application calls."""

from collections.abc import Callable
from functools import partial


def callee(chosen: Callable) -> Callable:
    """The class or function that a (nested) partial application calls; other objects are returned unchanged."""
    while isinstance(chosen, partial):
        chosen = chosen.func
    return chosen
