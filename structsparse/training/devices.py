"""The accelerator (CPU or CUDA) that `trainer.accelerator=auto` selects for a stage."""

from __future__ import annotations

import torch
from rich.console import Console


def automatic() -> str:
    """The kind of device (accelerator) that is available on this machine: cuda, mps or cpu."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def accelerator(requested: str, host_only: str | None, console: Console) -> str:
    """The accelerator device for Lightning: `auto` becomes `cpu` if the stage cannot run on the device found.

    `requested` is the option trainer.accelerator. `host_only` is the name of a solver or model that runs on the CPU
    only, if there is one. `auto` never selects MPS, which lacks float64. If `auto` becomes `cpu`, the console shows the
    reason."""
    device = automatic()
    if requested != "auto" or device == "cpu" or (device == "cuda" and host_only is None):
        return requested
    reason = f"{host_only} runs on the CPU only" if host_only else "sums are float64, which MPS does not have"
    console.print(f"{reason}: trainer.accelerator=auto is the CPU, not {device}", highlight=False, soft_wrap=True)
    return "cpu"
