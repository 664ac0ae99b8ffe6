"""Sparse linear models solved to a duality gap by proximal Newton with working sets: `fit_linear`."""

from structsparse.solvers.linear.fit import LinearFit, critical_strength, fit_linear

__all__ = ["LinearFit", "critical_strength", "fit_linear"]
