"""Solvers of linear models with overlapping group lasso: majorize-minimise, and ADMM after Yogatama (2015)."""

from structsparse.solvers.overlaps.admm import Admm
from structsparse.solvers.overlaps.majorize import Majorizer
from structsparse.solvers.overlaps.optimizers import ADMM, Majorize, StoppedEarly
from structsparse.solvers.overlaps.problem import Certificate, OverlapProblem

__all__ = ["ADMM", "Admm", "Certificate", "Majorize", "Majorizer", "OverlapProblem", "StoppedEarly"]
