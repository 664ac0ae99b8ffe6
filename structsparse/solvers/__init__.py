"""Solvers of sparse models: torch optimizers such as proximal gradient, quasi-Newton, dual averaging and MIRA.

The function `fit_linear` fits a linear model directly."""

from typing import TYPE_CHECKING

from structsparse.base.lazy import lazy_names

if TYPE_CHECKING:
    from structsparse.solvers.base import Solver, TorchSolver, solver_of
    from structsparse.solvers.columns import ColumnAdamW
    from structsparse.solvers.dual_averaging import RDA, AdagradRDA
    from structsparse.solvers.few_values import ProxOnly, StraightThrough, Tied
    from structsparse.solvers.fista import FISTA, AcceleratedSGD
    from structsparse.solvers.linear import LinearFit, critical_strength, fit_linear
    from structsparse.solvers.mira import MIRA
    from structsparse.solvers.newton_cg import NewtonCG
    from structsparse.solvers.online import OnlineMIRA, OnlinePerceptron
    from structsparse.solvers.online_dictionary import OnlineDictionary
    from structsparse.solvers.overlaps import ADMM, Majorize
    from structsparse.solvers.owlqn import OWLQN
    from structsparse.solvers.quasi_newton import ProximalQuasiNewton
    from structsparse.solvers.sampled_entries import SampledEntries
    from structsparse.solvers.scaled import ScaledAdagrad, ScaledSGD
    from structsparse.solvers.sgd import RowAdagrad, RowSGD
    from structsparse.solvers.truncated_svd import TruncatedSVD

__all__ = [
    "ADMM",
    "FISTA",
    "MIRA",
    "OWLQN",
    "RDA",
    "AcceleratedSGD",
    "AdagradRDA",
    "ColumnAdamW",
    "LinearFit",
    "Majorize",
    "NewtonCG",
    "OnlineDictionary",
    "OnlineMIRA",
    "OnlinePerceptron",
    "ProxOnly",
    "ProximalQuasiNewton",
    "RowAdagrad",
    "RowSGD",
    "SampledEntries",
    "ScaledAdagrad",
    "ScaledSGD",
    "Solver",
    "StraightThrough",
    "Tied",
    "TorchSolver",
    "TruncatedSVD",
    "critical_strength",
    "fit_linear",
    "solver_of",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": ("Solver", "TorchSolver", "solver_of"),
        "columns": ("ColumnAdamW",),
        "dual_averaging": ("RDA", "AdagradRDA"),
        "few_values": ("ProxOnly", "StraightThrough", "Tied"),
        "fista": ("FISTA", "AcceleratedSGD"),
        "linear": ("LinearFit", "critical_strength", "fit_linear"),
        "mira": ("MIRA",),
        "newton_cg": ("NewtonCG",),
        "online": ("OnlineMIRA", "OnlinePerceptron"),
        "online_dictionary": ("OnlineDictionary",),
        "overlaps": ("ADMM", "Majorize"),
        "owlqn": ("OWLQN",),
        "quasi_newton": ("ProximalQuasiNewton",),
        "sampled_entries": ("SampledEntries",),
        "scaled": ("ScaledAdagrad", "ScaledSGD"),
        "sgd": ("RowAdagrad", "RowSGD"),
        "truncated_svd": ("TruncatedSVD",),
    },
)
