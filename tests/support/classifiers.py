"""Small planted corpora of documents, random classifiers, and options of runs, for the tests of tasks/textcat."""

import numpy as np

from structsparse.corpora.documents import DocumentSplits
from structsparse.corpora.planted.documents import planted_documents
from structsparse.features.word_groups import planted
from structsparse.features.words import bag
from structsparse.tasks.textcat.data import DocumentData, prepare, with_groups
from structsparse.tasks.textcat.predictor import Classifier

SIZES = {"train": 80, "dev": 40, "test": 60, "groups": 10, "size": 12, "deciding": 2}
TEXTCAT = ("task=textcat", *(f"data.{name}={size}" for name, size in SIZES.items()))
PART_STRENGTHS = ("reg.group=0.01", "reg.lasso=0.1", "reg.squares=0")  # numbers for what dev chooses by default
STRUCTURED = ("reg=structured", *PART_STRENGTHS)
L1 = (
    *("reg=l1", "solver=fista", "features.weighting=counts", "reg.strength=0.1", "reg.relative=true"),
    *("trainer.max_epochs=400", "solver.tolerance=1e-9"),
)

TREES = ("constituents",)  # planted corpora have no parse trees
PARTS = {  # files of conf/ for task=textcat, each with the options that it needs here
    "task": {"textcat": ()},
    "features": {"textcat": ()},
    "loss": {"logistic": (), "squared": (), "squared_hinge": ()},
    "solver": {"majorize": (), "admm": (), "early": ()},
    "groups": {
        "planted": (), "sentences": (), "documents": (), "combined": (), "constituents": TREES,
        "topics": ("groups.topics=6",), "brown": ("groups.classes=12",), "ward": ("groups.classes=12",),
        "words_file": ("groups.path=words.json",),
    },
    "reg": {
        "structured": (), "sentences": (), "constituents": TREES, "topics": ("groups.topics=6",),
        "brown": ("groups.classes=12",), "ward": ("groups.classes=12",),
    },
}  # fmt: skip


def corpus(classes: int = 2) -> DocumentSplits:
    """A small planted corpus."""
    return planted_documents(seed=0, classes=classes, **SIZES)


def data_of(classes: int = 2, **options) -> DocumentData:
    """The same as data of a classifier."""
    return prepare(corpus(classes), options)


def random_classifier(classes: int = 2, extra: bool = False, loss: str = "logistic", **options):
    """A classifier with random weights, most of them zero, its corpus, and the scores of test computed directly."""
    documents, draw = corpus(classes), np.random.default_rng(classes)
    words = bag(documents, **options)
    words = with_groups(words, planted) if extra else words
    shape = (len(words.layout), classes) if classes > 2 else (len(words.layout),)
    table = (draw.normal(size=shape) * (draw.random(shape) < 0.1)).astype(np.float32)
    bias = draw.normal(size=shape[1:] or (1,)).astype(np.float32)
    scores = words.matrix(documents.test) @ table.astype(np.float64) + bias.astype(np.float64)
    return Classifier.of(words, table, bias, documents.classes, documents.reading, loss), documents, scores
