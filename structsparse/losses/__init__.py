"""Loss functions: structured (CRF, hinge, perceptron), softmax, reconstruction, and pointwise losses for documents."""

from typing import TYPE_CHECKING

from structsparse.base.lazy import lazy_names

if TYPE_CHECKING:
    from structsparse.losses.pointwise import Logistic, PointwiseLoss, Squared, SquaredHinge
    from structsparse.losses.reconstruction import PMIReconstruction
    from structsparse.losses.softmax import SoftmaxLM
    from structsparse.losses.structured import CRF, Hinge, Perceptron, StructuredLoss

__all__ = [
    "CRF",
    "Hinge",
    "Logistic",
    "PMIReconstruction",
    "Perceptron",
    "PointwiseLoss",
    "SoftmaxLM",
    "Squared",
    "SquaredHinge",
    "StructuredLoss",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "pointwise": ("Logistic", "PointwiseLoss", "Squared", "SquaredHinge"),
        "reconstruction": ("PMIReconstruction",),
        "softmax": ("SoftmaxLM",),
        "structured": ("CRF", "Hinge", "Perceptron", "StructuredLoss"),
    },
)
