"""Plain commands beside peers: for each task and corpus at hand the headline command, baselines, and peers by dev.

    python -m benchmarks.defaults [--quick] [--only TEXT] [--json FILE]

Each row of ours is one command line without tuned numbers, run as a program of its own. Peers get their recommended
settings, and dev chooses among those settings: crfsuite with l2 and l1 on the same features, at most 200 iterations
(`benchmarks.selection peers` runs it to its own stop), and scikit-learn's logistic regression on tf-idf. The peer of
language models is our own modified Kneser-Ney, `preset=fast`; that of parsers is a plain averaged perceptron with all
templates. Test is read once for each row. A corpus that is not under
STRUCTSPARSE_DATA is left out, and the output says so. `--quick`: small parts of the corpora, to see that all runs.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ITERATIONS = 200  # of crfsuite with each setting, at most
SHOWN = ("f1", "accuracy", "uas", "perplexity")  # the score of a row: the first of these that a run has


@dataclass
class Row:
    """A line of the table: a system on a corpus."""

    corpus: str
    system: str
    score: float | None
    dev: float | None
    weights: int | None
    bytes: int | None
    seconds: float  # CPU seconds of the whole run: reading, fitting, testing and writing


CORPORA = {  # corpus: the task and data options
    "es": ("task=ner", "data=conll2002_esp"),
    "nl": ("task=ner", "data=conll2002_ned"),
    "chunks": ("task=chunking", "data=conll2000"),
    "planted": ("task=ner",),
    **{f"news {pair}": ("task=textcat", "data=newsgroups", f"data.pair={pair}") for pair in
       ("science", "sports", "religion", "computer")},
    "sentiment": ("task=textcat", "data=sentiment"),
    "ptb 200 K": ("task=lm", "data=ptb", "data.limit=200000"),
    "tr_imst": ("task=parsing", "data=ud", "data.treebank=tr_imst"),
}  # fmt: skip
PRESETS = {name: (f"preset={name}",) for name in ("fast", "accurate", "small")}
SYSTEMS = {  # by task: the headline command, presets, then baselines of our own
    "task=ner": {"headline": ("reg=group_lasso",), **PRESETS, "l1": ("reg=l1",), "l2": ("reg=l2",),
                 "MIRA": ("preset=mira",)},
    "task=textcat": {"headline": (), **PRESETS, "brown": ("reg=brown",)},
    "task=lm": {"headline": (), **PRESETS},
    "task=parsing": {"headline": (), **PRESETS, "perceptron": ("preset=accurate", "loss=perceptron",
                                                              "solver=online_perceptron")},
}  # fmt: skip
SYSTEMS["task=chunking"] = SYSTEMS["task=ner"]


def run(corpus: str, system: str, options: tuple[str, ...]) -> Row | None:
    """A command of ours, as a program; None if its corpus is not there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "train.py"), *options, f"hydra.run.dir={folder}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            print(f"{corpus}, {system}: {done.stderr.strip().splitlines()[-1][:200]}", flush=True)
            return None
        figures = json.loads((Path(folder) / "metrics.json").read_text())
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    name = next(name for name in SHOWN if name in figures)
    score, dev = figures[name], figures.get(f"dev_{name}")
    return Row(corpus, system, score, dev, figures.get("nonzero"), figures.get("artifact_bytes"), seconds)


def crfsuite(corpus: str, options: tuple[str, ...], quick: bool) -> Row | None:
    """crfsuite on the features of our plain command, with l2 or l1, which dev chooses among."""
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    from benchmarks.crfsuite_peer import Crfsuite, attributes_of, score_of
    from structsparse.base.errors import UserError

    begin = time.process_time()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", list(options))
    try:
        corpus_data, features = instantiate(cfg.data), instantiate(cfg.features, _convert_="all")
        data = instantiate(cfg.task).prepare(corpus_data, features, instantiate(cfg.filter), cfg.cache)
    except UserError as error:
        print(f"{corpus}, crfsuite: {error}", flush=True)
        return None
    settings = [{"c1": 0.0, "c2": c} for c in (0.3, 1.0)] + [{"c1": c, "c2": 0.0} for c in (0.5, 1.0)]
    best: tuple[float, float, int, int] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for setting in settings[1:2] if quick else settings:
            model = Crfsuite(data, Path(folder), "lbfgs", **setting, max_iterations=20 if quick else ITERATIONS)
            scores = {}
            for part in ("dev", "test"):
                sentences = data.splits.parts[part]
                tags = [tag for s in attributes_of(sentences, data.index.templates) for tag in model.tagger.tag(s)]
                scores[part] = score_of(data, sentences, tags, part)
            living = sum(w != 0 for weights in model.weights() for w in weights.values())
            found = (scores["dev"], scores["test"], living, model.path.stat().st_size)
            best = max(best or found, found)
    return Row(corpus, "crfsuite by dev", best[1], best[0], best[2], best[3], time.process_time() - begin)


def scikit_learn(corpus: str, options: tuple[str, ...], quick: bool) -> Row | None:
    """scikit-learn's logistic regression on tf-idf of the same documents; dev chooses its C."""
    import pickle

    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from structsparse.base.errors import UserError

    begin = time.process_time()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", list(options))
    try:
        corpus_data = instantiate(cfg.data)
    except UserError as error:
        print(f"{corpus}, scikit-learn: {error}", flush=True)
        return None
    parts = {part: (list(corpus_data.parts[part].texts), list(corpus_data.parts[part].labels)) for part in
             ("train", "dev", "test")}  # fmt: skip
    best = None
    for c in (1.0,) if quick else (0.1, 1.0, 10.0, 100.0):
        model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=c, max_iter=1000))
        model.fit(*parts["train"])
        found = (model.score(*parts["dev"]), model.score(*parts["test"]), -c, model)
        best = found if best is None or found[:3] > best[:3] else best
    weights = int((best[3][-1].coef_ != 0).sum())
    return Row(corpus, "scikit-learn by dev", best[1], best[0], weights, len(pickle.dumps(best[3])),
               time.process_time() - begin)  # fmt: skip


PEERS = {"task=ner": crfsuite, "task=chunking": crfsuite, "task=textcat": scikit_learn}


def small(task: str) -> tuple[str, ...]:
    """Options that make a run short, for --quick."""
    if task == "task=lm":
        return ("data.limit=20000",)
    return ("trainer.max_epochs=3",)


def main() -> None:
    """Run all commands and peers and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all of them work")
    parser.add_argument("--only", default="", help="corpora whose name contains this text")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    rows: list[Row] = []
    for corpus, data in CORPORA.items():
        if given.only not in corpus:
            continue
        for system, options in SYSTEMS[data[0]].items():
            rows.append(run(corpus, system, (*data, *options, *(small(data[0]) if given.quick else ()))))
            print(rows[-1], flush=True)
        if data[0] in PEERS and corpus != "planted":
            rows.append(PEERS[data[0]](corpus, data, given.quick))
            print(rows[-1], flush=True)
    rows = [row for row in rows if row is not None]
    print("\n| corpus | system | test | dev | weights | bytes | CPU s |\n|---|---|---|---|---|---|---|")
    for row in rows:
        score, dev = (f"{value:.4g}" if value is not None else "-" for value in (row.score, row.dev))
        sizes = (f"{value:,}" if value is not None else "-" for value in (row.weights, row.bytes))
        print(f"| {row.corpus} | {row.system} | {score} | {dev} | {' | '.join(sizes)} | {row.seconds:.0f} |")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
