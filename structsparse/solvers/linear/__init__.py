"""Large sparse linear models to a duality gap: proximal Newton with working sets, under one of our penalties."""

from structsparse.solvers.linear.fit import LinearFit, critical_strength, fit_linear

__all__ = ["LinearFit", "critical_strength", "fit_linear"]
