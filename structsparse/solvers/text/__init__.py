"""Linear models of words under overlapping groups: majorize and minimise, and ADMM as Yogatama (2015) has it."""

from structsparse.solvers.text.admm import Admm
from structsparse.solvers.text.majorize import Majorizer
from structsparse.solvers.text.optimizers import ADMM, Majorize, StoppedEarly
from structsparse.solvers.text.problem import Certificate, Problem

__all__ = ["ADMM", "Admm", "Certificate", "Majorize", "Majorizer", "Problem", "StoppedEarly"]
