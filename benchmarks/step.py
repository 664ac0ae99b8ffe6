"""A training step of a sparse tagger: ours against the sparse operations of torch.

The scores of a minibatch of 64 sentences, the loss of a chain CRF, its gradient, and the change of the weights; 96
templates (1-5-grams of pos[-5..5], 1-3-grams of word[-5..5], 1-2-grams of shape[-5..5]), float32. All contenders work
on the same batches with the same loss; what differs is how rows of the table are summed and changed. Corpus: the
training part of conll2000 where it can be found, else a planted one. Figures are per token.
"""

import itertools
import statistics
from functools import partial

import torch
from timing import QUICK_ROUNDS, ROUNDS, arguments, clock, compare, print_table, write_json
from torch import nn

from structsparse.base.errors import UserError
from structsparse.corpora.columns import read_columns
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.planted.tagging import planted_tagging
from structsparse.features import attributes
from structsparse.losses.structured import CRF
from structsparse.solvers.sgd import RowAdagrad, RowSGD
from structsparse.structures.chain import Chain
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import expand
from structsparse.tasks.tagging.model import SparseScorer, Tagger
from structsparse.training.batches import Batches, TokenArrays
from structsparse.weights.bags import row_sums
from structsparse.weights.batch import Sizes
from structsparse.weights.notes import notes_of

TEMPLATES = ["1-5-grams of pos[-5..5]", "1-3-grams of word[-5..5]", "1-2-grams of shape[-5..5]"]
SENTENCES = 64  # in a step
STEPS, QUICK_STEPS = 32, 12  # timed as one call: together they touch more memory than the caches hold
PLANTED = 12000  # sentences, should the real ones be missing: about as many tokens
RATE = 0.1


class EmbeddingBagScorer(nn.Module):
    """The usual way in torch: the gradient of the table is a sparse tensor with a row for each occurrence."""

    def __init__(self, sizes):
        super().__init__()
        table = torch.zeros(sizes.rows, sizes.labels)
        self.bag = nn.EmbeddingBag(*table.shape, mode="sum", sparse=True, include_last_offset=True, _weight=table)

    @property
    def table(self):
        return self.bag.weight

    def forward(self, batch):
        return batch.pad(self.bag(batch.ids, batch.offsets.int()))  # of one kind, or torch would copy the ids


class PlannedSGD(RowSGD):
    """Our route where no kernel is compiled: occurrences sorted by row, residuals summed, each row changed once."""

    def _bags(self, group, parameter):
        for gradient in notes_of(parameter).pending:
            rows, sums = row_sums(gradient)
            parameter.index_add_(0, rows, sums, alpha=-group["lr"])


CONTENDERS = {
    "ours": (SparseScorer, RowSGD),
    "ours_adagrad": (SparseScorer, RowAdagrad),
    "planned_torch": (SparseScorer, PlannedSGD),
    "embeddingbag_sgd": (EmbeddingBagScorer, torch.optim.SGD),
}
WORDS = {
    "ours": "SparseScorer, RowSGD",
    "ours_adagrad": "SparseScorer, RowAdagrad",
    "planned_torch": "SparseScorer, planned: sort, embedding_bag, index_add_",
    "embeddingbag_sgd": "nn.EmbeddingBag(sparse=True), torch.optim.SGD",
}


def corpus():
    """Training sentences, and what they are."""
    try:
        path = locate("conll2000")["train"]
    except UserError:
        sentences = planted_tagging(train=PLANTED, dev=0, test=0).train
        return sentences, "planted, because conll2000 was not found; so many features that memory decides here too"
    return read_columns(path, ["word", "pos", "tag"], comments="never"), "conll2000, training part"


def prepare(sentences):
    """Bags of rows for every token, and the sizes of the model."""
    index = TokenIndex.fit(sentences, expand(TEMPLATES))
    labels = {label: code for code, label in enumerate(sorted(set(sentences.columns["tag"].values)))}
    gold = attributes.codes(sentences, {"tag": labels})[:, 0]
    nothing = attributes.numbers(sentences, []), attributes.codes(sentences, {})
    arrays = TokenArrays(index.bags(sentences), gold, sentences.offsets, *nothing)
    return arrays, Sizes(len(index), len(labels), 0, ())


class Contender:
    """A tagger with its optimizer; all begin at zero."""

    def __init__(self, sizes, scorer, optimizer):
        self.tagger, self.loss = Tagger(scorer(sizes), sizes.labels), CRF(Chain())
        self.optimizer = optimizer(self.tagger.parameters(), lr=RATE)

    @property
    def weights(self):
        return [self.tagger.scorer.table, self.tagger.transitions, self.tagger.start, self.tagger.end]

    def parts(self, batch):
        """The step, one part after the other; the last gives the mean loss of the batch."""
        self.optimizer.zero_grad()
        scores = self.tagger(batch)
        yield "forward"
        loss = self.loss(scores, batch.gold, batch.lengths).sum() / batch.items
        yield "loss"
        loss.backward()
        yield "backward"
        self.optimizer.step()
        self.latest = loss.detach()
        yield "update"

    def step(self, batch):
        for _ in self.parts(batch):
            pass
        return self.latest

    def lap(self, batches):
        for batch in batches:
            self.step(batch)


def assert_equal(contenders, batch):
    """Loss and weights after a step, and the loss at these weights, are the same for all that do plain SGD."""
    alike = [contender for contender in contenders.values() if not isinstance(contender.optimizer, RowAdagrad)]
    for _ in range(2):
        first, *others = (contender.step(batch) for contender in alike)
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-4)
    for other in alike[1:]:
        for left, right in zip(other.weights, alike[0].weights, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


def time_parts(contender, batches, options):
    """Median seconds of each part over a lap."""
    now, laps = clock(options.threads), []
    for _ in range(QUICK_ROUNDS if options.quick else ROUNDS):
        seconds = dict.fromkeys(("forward", "loss", "backward", "update"), 0.0)
        for batch in batches:
            begin = now()
            for part in contender.parts(batch):
                end = now()
                seconds[part] += end - begin
                begin = end
        laps.append(seconds)
    return {part: statistics.median(lap[part] for lap in laps) for part in laps[0]}


def main():
    options = arguments(__doc__)
    sentences, name = corpus()
    arrays, sizes = prepare(sentences)
    drawn = Batches(arrays, SENTENCES, shuffle=True)
    batches = list(itertools.islice(drawn, QUICK_STEPS if options.quick else STEPS))
    tokens = sum(len(batch.places) for batch in batches)
    contenders = {name: Contender(sizes, *parts) for name, parts in CONTENDERS.items()}
    assert_equal(contenders, batches[0])
    seconds = compare({name: partial(contender.lap, batches) for name, contender in contenders.items()}, options)
    parts = time_parts(contenders["ours"], batches, options)
    figures = {
        f"speedup_over_{name}": seconds[name] / seconds["ours"] for name in ("embeddingbag_sgd", "planned_torch")
    }
    figures |= {f"us_per_token_{name}": taken / tokens * 1e6 for name, taken in seconds.items()}
    figures |= {f"us_per_token_ours_{part}": taken / tokens * 1e6 for part, taken in parts.items()}
    kind = "CPU time, one thread" if options.threads == 1 else f"wall time, {options.threads} threads"
    print(f"corpus: {name}; {len(sentences):,} sentences, {sentences.tokens:,} tokens")
    print(f"table: {sizes.rows:,} features x {sizes.labels} labels, {sizes.rows * sizes.labels * 4 / 1e6:.0f} MB")
    rows = [[WORDS[name], taken / tokens * 1e6, taken / seconds["ours"]] for name, taken in seconds.items()]
    print_table(f"Training step, {SENTENCES} sentences; {kind}", ["", "us/token", "times ours"], rows)
    print_table("Ours by part", ["", "us/token"], [[part, taken / tokens * 1e6] for part, taken in parts.items()])
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
