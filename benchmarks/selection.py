"""Group selection of taggers beside its controls, on a corpus of spans (es, nl or chunks).

    python -m benchmarks.selection peers CORPUS     the headline command less crfsuite, paired on test
    python -m benchmarks.selection random CORPUS    the selected templates less as many drawn at random, paired on test
    python -m benchmarks.selection tenths CORPUS    what the one-standard-error rule loses if dev is a tenth of train
    python -m benchmarks.selection parts CORPUS     what label schemes, templates and word lists add to preset=fast

`peers`: crfsuite gets the same templates, l2 (c2 .1, .3, 1) and l1 (c1 .25, .5), runs to its own stop, and dev
chooses. `random`: five draws, each with the pilot, the refits and the choice of the last refit of the headline command.
`tenths`: the last refit aside, the chosen set of templates against the set that is best on test, four random tenths.
They are other tenths than those that were looked at when the rule was made (seeds 0 to 3).
`parts`: no lexicon is at hand, so one is made of the spans of one half of train, for a model that learns from the other
half. With the spans of its own sentences, a model would trust a lexicon that knows every span of train and few of test.
`--text FILE` is a further text for Brown clusters.

Test is told here, and nothing is chosen by it. `--counts FOLDER` keeps the counts of the sentences of test, and reuses
those of crfsuite.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf, open_dict
from rich.console import Console

from structsparse.cli.train import silence_lightning
from structsparse.corpora.columns import Sentences
from structsparse.corpora.splits import drawn
from structsparse.training import fit
from structsparse.training.automatic import Automatic
from structsparse.training.compose import stages_of
from structsparse.training.search.candidates import Candidate, quick
from structsparse.training.search.choose import paired_errors, score
from structsparse.training.search.group_search import GroupSearch
from structsparse.training.stage import StageResult

ROOT = Path(__file__).resolve().parents[1]
CORPORA = {
    "es": ("task=ner", "data=conll2002_esp"),
    "nl": ("task=ner", "data=conll2002_ned"),
    "chunks": ("task=chunking", "data=conll2000"),
    "planted": ("task=ner", "data=planted"),
}
DRAWS = 5  # sets of templates drawn at random
TENTHS = range(4, 8)  # seeds of random tenths of train that are held out in turn
SETTINGS = [{"c1": 0.0, "c2": c} for c in (0.1, 0.3, 1.0)] + [{"c1": c, "c2": 0.0} for c in (0.25, 0.5)]


class Run:
    """The headline command on a corpus, with all parts at hand."""

    def __init__(
        self, corpus: str, options: Sequence[str] = ("reg=group_lasso",), seed: int | None = None, halved: bool = False
    ) -> None:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose("config", [*CORPORA[corpus], *options], return_hydra_config=True)
        choices = {key: str(value) for key, value in cfg.hydra.runtime.choices.items()}
        with open_dict(cfg):
            del cfg["hydra"]
        self.task, features = instantiate(cfg.task, _convert_="all"), instantiate(cfg.features, _convert_="all")
        splits = instantiate(cfg.data)
        if seed is not None:
            parts = drawn(splits.train, {"dev": round(len(splits.train) / 10)}, seed, "sentences")
            splits = replace(splits, train=parts["train"], dev=parts["dev"])
        if halved:
            parts = drawn(splits.train, {"dev": len(splits.train) // 2}, 0, "sentences")
            splits, self.other_half = replace(splits, train=parts["train"]), parts["dev"]
        self.data = self.task.prepare(splits, features, instantiate(cfg.filter), cfg.cache)
        self.cfg, self.choices = cfg, choices

    def search(self, kind: type[GroupSearch], **options) -> GroupSearch:
        """A search of the headline command, of a class that this benchmark defines."""
        folder = Path(tempfile.mkdtemp())
        automatic = Automatic(self.cfg, self.choices)
        setting = automatic.setting(self.task, self.data, folder, False, Console(quiet=True))
        search = kind(setting, OmegaConf.to_container(self.cfg.search.groups.refits))
        vars(search).update(options)
        return search

    def fit(self) -> StageResult:
        """The fit of a configuration with one stage."""
        (stage,) = stages_of(self.cfg, self.data.metric, Path(tempfile.mkdtemp()), Console(quiet=True))
        return fit.run(quick(stage), self.task, self.data, None, Path(tempfile.mkdtemp()), False)


def counts(result, part: str = "test") -> np.ndarray:
    """The counts of right, gold and predicted spans of each sentence of a part, in the order of the corpus."""
    batches = result.data.batches(part, 256)
    order = np.concatenate([batch.sentences.numpy() for batch in batches])
    return result.module.item_counts(batches)[np.argsort(order)]


def difference(ours: np.ndarray, other: np.ndarray) -> str:
    """The difference of two F1 scores, with its paired standard error."""
    return f"{score(ours) - score(other):+.4f} +- {paired_errors([ours, other], 1)[0]:.4f}"


class Watched(GroupSearch):
    """A search that keeps the test counts of each set of templates on its path."""

    def _advance(self, share, k):
        before = len(self.sets)
        super()._advance(share, k)
        if len(self.sets) > before:
            self.tested.append(counts(self.refitted))

    def _fit(self, stage, before, folder, resume=False):
        self.refitted = super()._fit(stage, before, folder, resume)
        if folder.startswith("pilot"):
            self.tested = [counts(self.refitted)]
        return self.refitted


class Drawn(GroupSearch):
    """A search whose set of templates is drawn at random, as many as `count`, with the generator `random`."""

    def run(self):
        self.pilot = self._counted(self._fit(self.setting.stage_of("pilot", {}), None, "pilot"))
        self.walker, self.weights = self._start()
        results = []
        for draw in range(DRAWS):
            masks = {}
            for name, penalty in self.walker.full.penalties.items():
                groups, weights = penalty.groups, self.pilot.weights[name]
                kept = self.random.permutation(np.flatnonzero(groups.size.numpy() > 0))[: self.count]
                alive = torch.zeros(len(groups), dtype=torch.bool)
                alive[torch.from_numpy(kept)] = True
                masks[name] = groups.expand(alive, fill=False).expand(weights.shape).clone()
            self._fit(self.setting.stage_of("refit", {}), self._masked(masks), f"draw-{draw}")
            self.sets = [Candidate({}, None)]
            best = Candidate({"share": 0.0, "groups": self.count}, None, masks=masks, folder=f"draw-{draw}")
            results.append(self._last_refit(best)[-1])
        return results


def headline(run: Run, corpus: str, kept: Path) -> tuple[np.ndarray, int]:
    """The test counts of the headline command, and its number of living templates."""
    begin = time.process_time()
    outcome = run.search(GroupSearch).run()
    last, groups = outcome.results[-1], outcome.chosen["groups"]
    ours = counts(last)
    figures = f"{groups} templates, {last.nonzero_weights():,} weights, {time.process_time() - begin:.0f} CPU s"
    print(f"{corpus}: headline {score(ours):.4f}, dev {last.score('dev')['f1']:.4f}, {figures}", flush=True)
    np.save(kept / f"{corpus}-headline.npy", ours)
    return ours, groups


def peers(run: Run, corpus: str, kept: Path) -> None:
    """The headline command less crfsuite with each setting; dev chooses among those of l2 and of l1."""
    from benchmarks.crfsuite_peer import Crfsuite, attributes_of

    data, ours = run.data, headline(run, corpus, kept)[0]
    attributes = {part: attributes_of(data.splits.parts[part], data.index.templates) for part in ("dev", "test")}
    place = {name: k for k, name in enumerate(data.names)}
    for setting in SETTINGS:
        name = f"{corpus}-crfsuite-l{1 if setting['c1'] else 2}-{setting['c1'] or setting['c2']:g}"
        begin, path = time.process_time(), kept / f"{name}.npz"
        if not path.exists():
            with tempfile.TemporaryDirectory() as folder:
                model = Crfsuite(data, Path(folder), "lbfgs", **setting)
                found = {"weights": sum(w != 0 for part in model.weights() for w in part.values())}
                for part, sentences in attributes.items():
                    tags = np.array([place[tag] for sentence in sentences for tag in model.tagger.tag(sentence)])
                    gold, offsets = data.arrays[part].gold, data.splits.parts[part].offsets
                    found[part] = data.score().by_sentence(gold, tags, offsets)
            np.savez(path, **found, seconds=time.process_time() - begin)
        found = np.load(path)
        scores = ", ".join(f"{part} {score(found[part]):.4f}" for part in ("test", "dev"))
        costs = f"{int(found['weights']):,} weights, {float(found['seconds']):.0f} CPU s"
        print(f"{name}: {scores}, {costs}; headline less it {difference(ours, found['test'])}", flush=True)


def drawn_at_random(run: Run, corpus: str, kept: Path) -> None:
    """The headline command less refits of templates drawn at random."""
    ours, groups = headline(run, corpus, kept)
    draws = run.search(Drawn, count=groups, random=np.random.default_rng(0)).run()
    tested = [counts(result) for result in draws]
    for k, (result, other) in enumerate(zip(draws, tested, strict=True)):
        figures = f"dev {result.score('dev')['f1']:.4f}, {result.nonzero_weights():,} weights"
        print(f"{corpus}: {groups} at random, draw {k}: {score(other):.4f}, {figures}; {difference(ours, other)}")
    scores = [score(other) for other in tested]
    spread = np.std(scores, ddof=1) / len(scores) ** 0.5
    print(f"{corpus}: headline less the mean of the draws {score(ours) - np.mean(scores):+.4f}; their se {spread:.4f}")


def tenths(run: Run, corpus: str, kept: Path) -> None:
    """What the one-standard-error rule loses against the best set of the path on test, with random tenths as dev."""
    losses = []
    for seed in TENTHS:
        run = Run(corpus, seed=seed)
        search = run.search(Watched)
        outcome = search.run()
        scores = [score(tested) for tested in search.tested]
        chosen = [candidate.row for candidate in search.sets].index(outcome.chosen)
        best = int(np.argmax(scores))
        losses.append(scores[best] - scores[chosen])
        print(
            f"{corpus}, tenth {seed}: chosen {scores[chosen]:.4f} with {search.sets[chosen].row['groups']} templates, "
            f"best on test {scores[best]:.4f} with {search.sets[best].row['groups']}, loss {losses[-1]:.4f}; "
            f"after the last refit {score(counts(outcome.results[-1])):.4f}; cost {outcome.figures['search_cost']:.1f}",
            flush=True,
        )
    print(f"{corpus}: mean loss {np.mean(losses):.4f}, worst {max(losses):.4f}")


def parts(run: Run, corpus: str, kept: Path) -> None:
    """What each part adds to an elastic net on the standard templates, on dev and on test."""
    added = {"none": (), "IOBES": ("task.scheme=iobes",), "452 templates": ("features=martins_entities",),
             "Brown clusters of train": ("features.clusters=brown",)}  # fmt: skip
    if (text := kept / "text.txt").exists():
        added["Brown clusters of a text"] = ("features.clusters=brown", f"features.cluster_text={text}")
    fast = f"preset={run.task.name}_fast"
    tell_gains(corpus, {name: partial(Run, corpus, [fast, *options]) for name, options in added.items()})
    half = Run(corpus, [fast], halved=True)
    lexicon, entities = kept / f"{corpus}-lexicon.txt", entities_of(half.other_half, half.data.tag)
    lexicon.write_text("".join(f"{entity}\t{kind}\n" for entity, kind in sorted(entities)))
    known = partial(Run, corpus, [fast, f"features.lexicons=[{lexicon}]"], halved=True)
    tell_gains(corpus, {"half of train": lambda: half, "lexicon of the other half": known})


def tell_gains(corpus: str, makers: dict[str, Callable[[], Run]]) -> None:
    """Make and fit each run, and tell how much better it is than the first one."""
    before: dict[str, np.ndarray] = {}
    for name, make in makers.items():
        run = make()
        begin = time.process_time()
        result = run.fit()
        seconds = time.process_time() - begin
        found = {part: counts(result, part) for part in ("dev", "test")}
        before = before or found
        lines = [f"{part} {score(found[part]):.4f} ({difference(found[part], before[part])})" for part in found]
        weights = f"{result.nonzero_weights():,} weights, {seconds:.0f} CPU s of fit"
        print(f"{corpus}, {name}: {', '.join(lines)}, {weights}", flush=True)


def entities_of(sentences: Sentences, tag: str) -> set[tuple[str, str]]:
    """The spans of some sentences, as words between spaces, with their types; `tag` is the column of tags."""
    entities = set()
    words, tags = sentences.columns["word"].strings(), sentences.columns[tag].strings()
    for begin, end in zip(sentences.offsets[:-1].tolist(), sentences.offsets[1:].tolist(), strict=True):
        for k in range(begin, end):
            if tags[k].startswith("B-"):
                last = next((j for j in range(k + 1, end) if not tags[j].startswith("I-")), end)
                entities.add((" ".join(words[k:last]), tags[k][2:]))
    return entities


MODES = {"peers": peers, "random": drawn_at_random, "tenths": tenths, "parts": parts}


def main() -> None:
    """Run one comparison on one corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--counts", type=Path, help="keep the counts of sentences in this folder")
    parser.add_argument("--text", type=Path, help="text for Brown clusters, a sentence of tokens in each line")
    given = parser.parse_args()
    silence_lightning()
    kept = given.counts or Path(tempfile.mkdtemp())
    kept.mkdir(parents=True, exist_ok=True)
    if given.text:
        shutil.copy(given.text, kept / "text.txt")
    MODES[given.mode](Run(given.corpus), given.corpus, kept)


if __name__ == "__main__":
    main()
