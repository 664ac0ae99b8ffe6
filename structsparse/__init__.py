"""Structured predictors under group-sparsity penalties: train models, remove their zero weights, use the small models.

    import structsparse as ss

    result = ss.train(["task=ner", "reg=group_lasso"])     # has .metrics, .folder and .model
    model = ss.load("runs/.../model")                      # has .predict, .nbest, .marginals and .evaluate

    penalties = ss.attach("group_lasso", net, groups="module_rows", parameters="*linear1.weight", strength=1e-3)
    trainer = lightning.Trainer(callbacks=[ss.ProximalStep(penalties)])
    handle = ss.proximal(optimizer, net, penalties)        # without Lightning: once, before the training loop
    slim, report = ss.remove_dead(net)                     # a smaller net

    fit = ss.fit_linear(X, y, ss.penalties.L1(0.1))

`ss.penalties`, `ss.groups`, `ss.prox`, `ss.structures`, `ss.losses` and `ss.solvers` are the packages to extend in
research. Every name is imported on first use. Mistakes that the caller can correct raise `ss.UserError`.
"""

from typing import TYPE_CHECKING

from structsparse.base.errors import UserError
from structsparse.base.lazy import lazy_names
from structsparse.base.version import VERSION as __version__

if TYPE_CHECKING:
    from structsparse import groups, losses, penalties, prox, solvers, structures
    from structsparse.cli.train import train
    from structsparse.networks.attach import attach, proximal
    from structsparse.networks.surgery import remove_dead
    from structsparse.solvers.linear import fit_linear
    from structsparse.tasks.registry import load
    from structsparse.training.callbacks.proximal import ProximalStep

__all__ = [
    "ProximalStep",
    "UserError",
    "__version__",
    "attach",
    "fit_linear",
    "groups",
    "load",
    "losses",
    "penalties",
    "prox",
    "proximal",
    "remove_dead",
    "solvers",
    "structures",
    "train",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cli.train": ("train",),
        "networks.attach": ("attach", "proximal"),
        "networks.surgery": ("remove_dead",),
        "solvers.linear": ("fit_linear",),
        "tasks.registry": ("load",),
        "training.callbacks.proximal": ("ProximalStep",),
    },
    modules=("groups", "losses", "penalties", "prox", "solvers", "structures"),
)
