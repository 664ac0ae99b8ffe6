"""crfsuite as the peer of benchmarks/tagging.py: the same features as strings, its models, their weights and speed."""

import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import pycrfsuite
import torch
from hydra.utils import instantiate

from structsparse.corpora.columns import Column, Sentences
from structsparse.features.attributes import attribute
from structsparse.tasks.tagging.model import Tagger

TURNS = 5  # of each tagger
now = time.process_time  # all times are CPU times


@dataclass
class Row:
    """A line of the table: a trained tagger, its costs and its score."""

    name: str
    fit: float  # CPU seconds
    prepare: float  # CPU seconds of all that must be done besides
    weights: int
    score: float  # F1
    bytes: int
    speed: float = float("nan")  # tokens a second, from columns of text
    objective: float = float("nan")  # in crfsuite's terms: a sum over sentences


def score_of(data, sentences, tags, part="test"):
    score, place = data.score(), {name: k for k, name in enumerate(data.names)}
    score.add(data.arrays[part].gold, np.array([place[tag] for tag in tags]), sentences.offsets)
    return score.result()["f1"]


def seconds_of(call):
    """CPU seconds of a call, the median over some turns."""
    call()
    taken = []
    for _ in range(TURNS):
        begin = now()
        call()
        taken.append(now() - begin)
    return float(np.median(taken))


def attributes_of(sentences, templates):
    """For each token its features as strings, `template=value|value`; a list for each sentence."""
    names = sorted({name for template in templates for name, _ in template.atoms})
    columns = {name: attribute(sentences, name).strings() for name in names}
    result = []
    for begin, end in zip(sentences.offsets[:-1].tolist(), sentences.offsets[1:].tolist(), strict=True):
        values = {name: strings[begin:end] for name, strings in columns.items()}
        result.append(attributes_of_sentence(values, end - begin, templates))
    return result


def attributes_of_sentence(columns, length, templates):
    """The features of each token of a sentence as strings."""
    shifted = {}
    for template in templates:
        for name, offset in template.atoms:
            if (name, offset) not in shifted:
                before = [f"<{-k}" for k in range(offset, 0)][: min(-offset, length)]
                after = [f">{k}" for k in range(1, offset + 1)][-min(offset, length) :] if offset > 0 else []
                if offset <= 0:
                    shifted[name, offset] = [*before, *columns[name][: length - len(before)]]
                else:
                    after = [f">{k - length + offset + 1}" for k in range(max(0, length - offset), length)]
                    shifted[name, offset] = [*columns[name][offset:], *after]
    made = []
    for template in templates:
        parts = [shifted[atom] for atom in template.atoms]
        made.append([f"{template.name}={'|'.join(values)}" for values in zip(*parts, strict=True)])
    return [list(features) for features in zip(*made, strict=True)]


class Crfsuite:
    """A crfsuite model, trained on the same features as ours."""

    def __init__(self, data, folder, algorithm, **settings):
        begin = now()
        train_part = data.splits.train
        self.attributes = attributes_of(train_part, data.index.templates)
        self.data, self.path = data, folder / f"{algorithm}-{settings.get('c1', 0)}.crfsuite"
        labels = data.splits.train.columns[data.tag].strings()
        trainer = pycrfsuite.Trainer(algorithm, verbose=False)
        for k, features in enumerate(self.attributes):
            trainer.append(features, labels[train_part.offsets[k] : train_part.offsets[k + 1]])
        trainer.set_params({"feature.minfreq": 0, "feature.possible_states": 0, "feature.possible_transitions": 0})
        trainer.set_params(settings)
        middle = now()
        trainer.train(str(self.path))
        self.prepare, self.fit = middle - begin, now() - middle
        self.last = trainer.logparser.last_iteration or {}
        self.tagger = pycrfsuite.Tagger()
        self.tagger.open(str(self.path))

    def weights(self):
        info = self.tagger.info()
        return info.state_features, info.transitions

    def row(self, name, prepare, test):
        states, links = self.weights()
        living = sum(w != 0 for part in (states, links) for w in part.values())
        features = attributes_of(test, self.data.index.templates)
        tags = [tag for sentence in features for tag in self.tagger.tag(sentence)]
        score, size = score_of(self.data, test, tags), self.path.stat().st_size
        row = Row(name, self.fit, prepare + self.prepare, living, score, size)
        texts = replace(test, columns={n: test.columns[n] for n in ("word", "pos")})
        strings = {name: column.strings() for name, column in texts.columns.items()}

        def tag():
            columns = {name: Column.from_strings(values) for name, values in strings.items()}
            for sentence in attributes_of(Sentences(columns, test.offsets, "test"), self.data.index.templates):
                self.tagger.tag(sentence)

        def decode():
            for sentence in features:
                self.tagger.tag(sentence)

        row.speed, row.speed_prepared = test.tokens / seconds_of(tag), test.tokens / seconds_of(decode)
        return row

    def objective(self, data, cfg):
        """Our objective at the weights of crfsuite, a sum over sentences."""
        states, links = self.weights()
        scorer = instantiate(cfg.model)(data.sizes)
        tagger, label = Tagger(scorer, len(data.labels)), {name: k for k, name in enumerate(data.labels)}
        bags = data.arrays["train"].bags
        rows, place = {}, 0
        for sentence in self.attributes:
            for features in sentence:
                rows.update(zip(features, bags.ids[place : place + len(features)].tolist(), strict=True))
                place += len(features)
        table = torch.zeros(len(data.index) * len(label))
        for (feature, name), weight in states.items():
            table[rows[feature] * len(label) + label[name]] = weight
        with torch.no_grad():
            scorer.table.copy_(table[scorer.places])
            for (one, other), weight in links.items():
                tagger.transitions[label[one], label[other]] = weight
            kept = int((scorer.table != 0).sum() + (tagger.transitions * scorer.links != 0).sum())
            if kept != sum(w != 0 for part in (states, links) for w in part.values()):
                sys.exit("crfsuite has weights that our model has no place for")
            loss, total = instantiate(cfg.loss)(tagger.structure), 0.0
            for batch in data.batches("train", 1000):
                total += float(loss(tagger(batch), batch.gold, batch.lengths).sum())
            total += float(scorer.table.abs().sum() + tagger.transitions.abs().sum())
        return total
