"""Fits sparse linear models by proximal Newton with working sets, up to a given duality gap: `fit_linear`."""

from structsparse.solvers.linear.fit import LinearFit, critical_strength, fit_linear

__all__ = ["LinearFit", "critical_strength", "fit_linear"]
