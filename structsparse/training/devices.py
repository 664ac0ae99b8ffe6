"""The accelerator of a stage: what `trainer.accelerator=auto` means for its solver and its model."""

from __future__ import annotations

import torch
from rich.console import Console


def automatic() -> str:
    """The kind of device that `auto` finds on this machine."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def accelerator(requested: str, host_only: str | None, console: Console) -> str:
    """The accelerator for Lightning: `auto` is the CPU where the device found would be refused, after a line that says
    why. `host_only`: what runs on the CPU alone, if anything does."""
    device = automatic()
    if requested != "auto" or device == "cpu" or (device == "cuda" and host_only is None):
        return requested
    reason = f"{host_only} runs on the CPU only" if host_only else "sums are float64, which MPS does not have"
    console.print(f"{reason}: trainer.accelerator=auto is the CPU, not {device}", highlight=False, soft_wrap=True)
    return "cpu"
