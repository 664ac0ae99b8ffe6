"""Structures to predict: label sequences, dependency trees, and next words in language models."""

from typing import TYPE_CHECKING

from structsparse.base.lazy import lazy_names

if TYPE_CHECKING:
    from structsparse.structures.base import Structure
    from structsparse.structures.chain import Chain, ChainScores
    from structsparse.structures.contexts import Contexts
    from structsparse.structures.edges import EdgeChain, EdgeScores
    from structsparse.structures.nonprojective import NonprojectiveTree
    from structsparse.structures.projective import ProjectiveTree
    from structsparse.structures.trees import DependencyTree

__all__ = [
    "Chain",
    "ChainScores",
    "Contexts",
    "DependencyTree",
    "EdgeChain",
    "EdgeScores",
    "NonprojectiveTree",
    "ProjectiveTree",
    "Structure",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": ("Structure",),
        "chain": ("Chain", "ChainScores"),
        "contexts": ("Contexts",),
        "edges": ("EdgeChain", "EdgeScores"),
        "nonprojective": ("NonprojectiveTree",),
        "projective": ("ProjectiveTree",),
        "trees": ("DependencyTree",),
    },
)
