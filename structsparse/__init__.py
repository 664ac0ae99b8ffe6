"""Structured predictors under penalties that switch off whole groups of weights."""

__version__ = "0.1.0"
