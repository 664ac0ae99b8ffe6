"""Optimizers, and the step an optimizer really took."""
