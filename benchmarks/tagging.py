"""Chunking: our taggers against crfsuite, CPU time of one thread.

CoNLL-2000 as published, the 19 templates of conf/features/chunking.yaml; both sides see the same features and
have a weight for the same pairs. crfsuite trains first: L1 by OWL-QN to its own stop, and its averaged perceptron. Then
ours, through the same recipe as `train.py`: the same L1 objective until it is as low as crfsuite's (which this program
evaluates at crfsuite's weights with our own code, and stops if it does not agree with what crfsuite has said); the same
stopped early, after as many iterations as did best on a tenth of the training sentences held out from a run of its own;
averaged MIRA for 10 epochs. Of the first one also with weights of few bits, beside crfsuite's file of the same weights.
Without conll2000 the corpus is a planted one, as the output then says.
"""

import argparse
import sys
import tempfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from crfsuite_peer import Crfsuite, Row, now, score_of, seconds_of
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from lightning import Callback
from rich.console import Console
from timing import print_table, set_threads, write_json

from structsparse import load
from structsparse.artifacts.quantization import ArtifactOptions
from structsparse.base.configuration import configuration_folder
from structsparse.base.errors import UserError
from structsparse.cli.train import silence_lightning
from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.known.catalog import locate
from structsparse.tasks.tagging import artifact
from structsparse.tasks.tagging import data as tagging
from structsparse.tasks.tagging.task import TaggingTask
from structsparse.training import fit
from structsparse.training.compose import stages_of

QUICK = 1500  # sentences to train on
ITERATIONS = 1000  # of ours at most
PERCEPTRON_EPOCHS, MIRA_EPOCHS = 30, 10
EVERY, LOOKS = 5, 20  # a look at the held-out sentences after so many iterations, and how many looks
BITS, MISTAKEN = (8, 7, 6), 1e-4  # of weights; share of unknown features that may be taken for known ones

COMMON = ("task=chunking", "recipe=direct", "choose=last", "patience=null", "trainer.log_every_n_steps=1000000")
WHOLE = ("model=pairs", "model.observed=true", "solver=quasi_newton", "batch=null", "reg=l1", "reg.relative=false")
PENALISED = "reg.parameters=['*table',transitions]"


# --- the corpus


def options_of(*options):
    with initialize_config_dir(str(configuration_folder()), version_base="1.3"):
        return compose("config", overrides=[*COMMON, *options])


def corpus_options():
    try:
        locate("conll2000")
    except UserError:
        return ("data=planted", "data.train=4000", "data.dev=400", "data.test=800"), "planted (conll2000 was not found)"
    return ("data=conll2000",), "conll2000"


def prepared(cfg, quick):
    """The corpus as `train.py` would have it, and the CPU seconds that it takes from the files on."""
    begin = now()
    splits = instantiate(cfg.data)
    if quick:
        splits = replace(splits, train=splits.train.select(slice(0, QUICK)))
    task, features = instantiate(cfg.task), cfg.features
    data = tagging.prepare(
        splits, features.templates, tag=task.tag, scheme=task.first_scheme, min_count=features.min_count
    )
    return data, now() - begin


# --- ours


class Watch(Callback):
    """Takes the time of training; stops when the objective is low enough; looks at the held-out sentences."""

    def __init__(self, low=None, looks=()):
        self.low, self.looks, self.seen = low, looks, {}
        self.seconds = 0.0

    def on_fit_start(self, trainer, module):
        self.seconds = -now()

    def on_fit_end(self, trainer, module):
        self.seconds += now()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        (optimizer,) = trainer.optimizers
        done = trainer.global_step
        if self.low is not None and optimizer.shared["objective"] <= self.low:
            trainer.should_stop = True
        if done in self.looks:
            self.seen[done] = module.evaluate(self.data.batches("dev", 256)).result()["f1"]


def fitted(data, cfg, folder, watch):
    """One stage of the recipe; CPU seconds of training, and of what comes before and after it: proofs and files."""
    (stage,) = stages_of(cfg, data.metric, folder, Console(quiet=True))
    trainer, watch.data = stage.trainer, data
    stage = replace(stage, trainer=lambda *, before, **rest: trainer(before=[*before, watch], **rest))
    begin = now()
    outcome = fit.run(stage, instantiate(cfg.task), data, None, folder / "checkpoints", resume=False)
    return outcome, (watch.seconds, now() - begin - watch.seconds)


def l1_options(data, iterations, *more):
    strength = 1 / len(data.arrays["train"])  # a weight of 1 beside a sum of losses
    epochs = f"trainer.max_epochs={iterations}", f"trainer.check_val_every_n_epoch={iterations + 1}"
    return (*WHOLE, PENALISED, f"reg.strength={strength!r}", *epochs, *more)


def row_of_ours(name, outcome, seconds, prepare, folder, test):
    module, data = outcome.module, outcome.data
    state = module.state_dict()
    weights = sum(int((value != 0).sum()) for key, value in state.items())
    score = module.evaluate(data.batches("test", 256)).result()["f1"]
    size = artifact.save(folder / "model", module.tagger, data)
    objective = outcome.figures.certificate.objective * len(data.arrays["train"])
    fit, around = seconds
    row = Row(name, fit, prepare + around, weights, score, size, objective=objective)
    row.speed, row.speed_prepared, tags = our_speed(folder / "model", outcome, test)
    if tags is not None and abs(score_of(data, test, tags) - score) > 1e-9:
        sys.exit(f"{name}: the small model does not predict what the trained one does")
    return row


def few_bits(outcome, bits, prepare, folder, test):
    """The same model, its weights rounded and its keys shortened."""
    data = outcome.data
    small = TaggingTask(data.tag, data.scheme).rounded(
        replace(outcome, module=deepcopy(outcome.module)), ArtifactOptions(bits, MISTAKEN)
    )
    return row_of_ours(f"the same, {bits} bits", small, (0.0, 0.0), prepare, folder / f"bits-{bits}", test)


def figures_of_bits(theirs, small):
    figures = {}
    for bits, row in small.items():
        figures |= {f"f1_of_l1_{bits}_bits": 100 * row.score, f"bytes_of_l1_{bits}_bits": row.bytes}
        figures[f"crfsuite_l1_bytes_over_l1_{bits}_bits"] = theirs.bytes / row.bytes
    return figures


def our_speed(folder, outcome, test):
    """Tokens a second of the small model from strings, those of the trained one from rows; the predictions."""
    model, data = load(folder), outcome.data
    texts = {name: column.strings() for name, column in test.columns.items() if name in model.columns}

    def tag():
        columns = {name: Column.from_strings(strings) for name, strings in texts.items()}
        return model.tag(Sentences(columns, test.offsets, "test"))

    batches = list(data.batches("test", 256))

    def decode():
        with torch.no_grad():
            for batch in batches:
                outcome.module.predict_step(batch)

    return test.tokens / seconds_of(tag), test.tokens / seconds_of(decode), tag().strings()


def reading(options, quick):
    """CPU seconds that it takes to read the files: part of both preparations, measured with ours."""
    begin = now()
    splits = instantiate(options_of(*options).data)
    return now() - begin, splits.train.select(slice(0, QUICK)) if quick else splits.train


def warm_up(folder):
    """Compiles what will be called, on a few planted sentences."""
    options = ("data=planted", "data.train=300", "data.dev=20", "data.test=300", "features=chunking")
    cfg = options_of(*options)
    data, _ = prepared(cfg, quick=False)
    for name, own in (("l1", l1_options(data, 10)), ("mira", mira_options(1))):
        outcome, _ = fitted(data, options_of(*options, *own), folder / name, Watch())
        row_of_ours(name, outcome, (0.0, 0.0), 0.0, folder / name, data.splits.test)


def mira_options(epochs):
    every = f"trainer.max_epochs={epochs}", f"trainer.check_val_every_n_epoch={epochs + 1}"
    return ("solver=online_mira", "loss=hinge", "model=sparse", "reg=none", "batch=null", *every)


def chosen_iterations(options, quick, folder):
    """After how many iterations the held-out sentences are tagged best; of equals the fewest."""
    data, _ = prepared(options_of(*options, "data.join_dev=false"), quick)
    looks = range(EVERY, EVERY * LOOKS + 1, EVERY)
    watch, own = Watch(looks=looks), l1_options(data, looks[-1])
    _, seconds = fitted(data, options_of(*options, *own, "data.join_dev=false"), folder, watch)
    best = max(watch.seen, key=lambda done: (watch.seen[done], -done))
    return best, watch.seen, sum(seconds)


def show(rows, title):
    lines = [
        [
            row.name, f"{row.fit:.2f}", f"{row.fit + row.prepare:.2f}", f"{row.weights:,}", f"{100 * row.score:.2f}",
            f"{row.bytes:,}", f"{row.speed:,.0f}", f"{row.speed_prepared:,.0f}", f"{row.objective:.3f}",
        ]
        for row in rows
    ]  # fmt: skip
    columns = ["", "cpu s", "with all", "weights", "test F1", "bytes", "tokens/s", "from features", "objective"]
    print_table(title, columns, lines)


def figures_of(theirs, stopped, perceptron, l1, early, mira):
    def whole(one, other):
        return (one.fit + one.prepare) / (other.fit + other.prepare)

    figures = {
        "f1_minus_crfsuite_l1": 100 * (l1.score - theirs.score),
        "weights_over_crfsuite_l1": l1.weights / theirs.weights,
        "objective_over_crfsuite_l1": l1.objective / theirs.objective,
        "cpu_over_crfsuite_l1": l1.fit / theirs.fit,
        "cpu_with_preparation_over_crfsuite_l1": whole(l1, theirs),
        "f1_stopped": 100 * early.score,
        "weights_stopped": early.weights,
        "iterations_stopped": stopped[0],
        "cpu_choosing_iterations": stopped[2],
        "cpu_over_crfsuite_l1_stopped": early.fit / theirs.fit,
        "cpu_with_preparation_over_crfsuite_l1_stopped": whole(early, theirs),
        "f1_mira": 100 * mira.score,
        "f1_minus_crfsuite_perceptron": 100 * (mira.score - perceptron.score),
        "cpu_over_crfsuite_perceptron": mira.fit / perceptron.fit,
        "cpu_with_preparation_over_crfsuite_perceptron": whole(mira, perceptron),
        "tagging_speed_over_crfsuite": l1.speed / theirs.speed,
        "tagging_speed_over_crfsuite_from_features": l1.speed_prepared / theirs.speed_prepared,
        "tagging_speed_of_ours_from_text_over_crfsuite_from_features": l1.speed / theirs.speed_prepared,
    }
    for key, row in {
        "crfsuite_l1": theirs,
        "crfsuite_perceptron": perceptron,
        "l1": l1,
        "stopped": early,
        "mira": mira,
    }.items():
        figures |= {f"cpu_{key}": row.fit, f"cpu_with_preparation_{key}": row.fit + row.prepare}
        figures |= {f"f1_of_{key}": 100 * row.score, f"weights_of_{key}": row.weights, f"bytes_of_{key}": row.bytes}
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file as one flat object")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} sentences, within a minute")
    parser.add_argument("--more", action="store_true", help="crfsuite under squares and under both, too: minutes more")
    given = parser.parse_args()
    set_threads(1)
    silence_lightning()
    torch.manual_seed(0)
    corpus, name = corpus_options()
    whole = (*corpus, "data.join_dev=true") if name == "conll2000" else corpus
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        warm_up(folder / "warm")
        taken, _ = reading(whole, given.quick)
        data, prepare = prepared(options_of(*whole), given.quick)
        test = data.splits.test
        peer = Crfsuite(data, folder, "lbfgs", c1=1.0, c2=0.0)
        theirs = peer.row("crfsuite l1", taken, test)
        theirs.objective = peer.last.get("loss", float("nan"))
        cfg = options_of(*whole, *l1_options(data, ITERATIONS))
        ours_there = peer.objective(data, cfg)
        if abs(ours_there / theirs.objective - 1) > 1e-5:
            sys.exit(f"the objective at crfsuite's weights is {theirs.objective} to it and {ours_there} to us")
        del peer
        rows = [theirs]
        for kind, settings in {"l2": {"c1": 0.0, "c2": 1.0}, "elastic net": {"c1": 0.1, "c2": 0.1}}.items():
            if given.more:
                rows.append(Crfsuite(data, folder, "lbfgs", **settings).row(f"crfsuite {kind}", taken, test))
        epochs = PERCEPTRON_EPOCHS
        perceptron = Crfsuite(data, folder, "ap", max_iterations=epochs).row("crfsuite perceptron", taken, test)

        low = min(theirs.objective, ours_there) / len(data.arrays["train"])
        outcome, seconds = fitted(data, cfg, folder / "l1", Watch(low))
        l1 = row_of_ours("ours l1", outcome, seconds, prepare, folder / "l1", test)
        small = {bits: few_bits(outcome, bits, prepare, folder, test) for bits in BITS}
        stopped = chosen_iterations(whole, given.quick, folder / "chosen")
        cfg = options_of(*whole, *l1_options(data, stopped[0]))
        outcome, seconds = fitted(data, cfg, folder / "stopped", Watch())
        early = row_of_ours(f"ours l1, {stopped[0]} iterations", outcome, seconds, prepare, folder / "stopped", test)
        outcome, seconds = fitted(data, options_of(*whole, *mira_options(MIRA_EPOCHS)), folder / "mira", Watch())
        mira = row_of_ours(f"ours mira, {MIRA_EPOCHS} epochs", outcome, seconds, prepare, folder / "mira", test)
    rows += [perceptron, l1, *small.values(), early, mira]
    size = f"{len(data.arrays['train']):,} sentences, {len(data.arrays['train'].gold):,} tokens"
    show(rows, f"{name}, {size}; CPU time, one thread")
    print(f"objective of crfsuite's weights, evaluated by us: {ours_there:.3f}")
    print("held-out F1 by iterations: " + "  ".join(f"{k}: {100 * v:.2f}" for k, v in stopped[1].items()))
    write_json(given.json, figures_of(theirs, stopped, perceptron, l1, early, mira) | figures_of_bits(theirs, small))


if __name__ == "__main__":
    main()
