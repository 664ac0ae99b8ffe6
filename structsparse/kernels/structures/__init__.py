"""Kernels of structured models: linear chains, dependency trees, context trees of language models."""
