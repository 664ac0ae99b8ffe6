"""Small parsers with weights that were drawn, for tests."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from structsparse.corpora.known.treebanks import TreebankSplits, planted
from structsparse.features.filters import all_of
from structsparse.tasks.parsing.data import ParsingData, prepare
from structsparse.tasks.parsing.model import ArcScorer, Parser
from structsparse.tasks.parsing.predictor import DependencyParser
from structsparse.tasks.parsing.relations import Labelling
from structsparse.tasks.parsing.task import Parsing

FEATURES = {
    "templates": [
        *("bias", "h.upos & m.upos", "h.lemma & m.upos", "h.word & m.word", "m-1.upos & m.upos & m+1.upos"),
        *("h.upos & m.upos & between.{upos,verbs,punctuation,verbs_punctuation,conjunctions}", "h.suffix2 & h+1.lemma"),
    ],
    "variants": ["plain", "direction", "distance"],
    "min_count": 1,
    "label_templates": ["h.upos & m.upos & direction", "h.lemma", "m.suffix3", "m.upos & between.upos & distance"],
}


@dataclass(frozen=True)
class Made:
    data: ParsingData
    module: Parsing

    @cached_property
    def model(self) -> DependencyParser:
        labelling = self.module.labelling
        relations = None if labelling is None else labelling.model
        return DependencyParser(self.data.index, self.module.parser, relations, self.data.splits.rule)

    def heads(self, part: str) -> np.ndarray:
        """What the module that trains predicts: [tokens]"""
        found, offsets = np.empty(self.data.splits.parts[part].tokens, np.int64), self.data.arrays[part].offsets
        for batch in self.data.batches(part, 7):
            heads = self.module.predict_step(batch).numpy()
            for row, sentence in enumerate(batch.sentences.tolist()):
                begin, end = offsets[sentence : sentence + 2]
                found[begin:end] = heads[row, : end - begin]
        return found


def corpus(seed: int = 0, sentences: int = 40) -> TreebankSplits:
    return planted(seed, sentences, 15, 15, 0.1)


def made(labels=True, projective=False, single_root=False, dead=0.7, **features) -> Made:
    """A parser under weights of which most are zero; relations are learnt from few features."""
    options = {"projective": projective, "single_root": single_root, "labels": labels}
    data = prepare(corpus(), FEATURES | features, all_of, 0, **options)
    parser, draw = Parser(ArcScorer(data.sizes), projective, single_root), np.random.default_rng(0)
    weights = draw.normal(size=len(data.index)) * (draw.random(len(data.index)) >= dead)
    weights[: data.index.offsets[1]] = 0  # a template dies
    with torch.no_grad():
        parser.scorer.table.copy_(torch.from_numpy(weights)[:, None])
    module = Parsing(parser, None, None, data.score, [])
    if labels:
        module.labelling = Labelling.fit(data.splits.parts, data.label_templates, data.min_count)
    return Made(data, module)
