"""Word vectors of gensim on the text that task=embeddings counts: skip-gram and CBOW.

Each is trained by negative sampling and by a hierarchical softmax. Vocabulary, window and number of dimensions are
those of the options; every other setting is gensim's default. Written are word2vec files, which
`structsparse evaluate FILE --against MODEL` compares; printed are the scores of `structsparse evaluate FILE` on the
known sets, and CPU seconds of training.

    python benchmarks/gensim_vectors.py text.txt --output vectors --dimensions 52 --epochs 5 --seeds 3
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from gensim.models import Word2Vec

from structsparse.corpora.known.running_text import running_text
from structsparse.kernels.features.cooccurrences import END
from structsparse.tasks.embeddings.artifact import load_file
from structsparse.tasks.embeddings.data import encoded

MODELS = {  # gensim's options: sg=1 is skip-gram, hs=1 a hierarchical softmax, negative the number of negative samples
    "skip-gram, negative sampling": {"sg": 1, "hs": 0, "negative": 5},
    "skip-gram, hierarchical softmax": {"sg": 1, "hs": 1, "negative": 0},
    "CBOW, negative sampling": {"sg": 0, "hs": 0, "negative": 5},
    "CBOW, hierarchical softmax": {"sg": 0, "hs": 1, "negative": 0},
}


def sentences_of(options):
    """The sentences of the text as lists of words; rare words are <unk>, as in task=embeddings."""
    text = running_text(options.text, "lines", "words", True, True, False, options.limit, {}).text
    codes, words, _ = encoded(text, options.min_count, True)
    table = np.array(words, object)
    ends = np.flatnonzero(codes == END)
    parts = (part[part != END] for part in np.split(codes, ends))
    return [table[part].tolist() for part in parts if len(part)]


def trained(sentences, settings, options, seed):
    """A trained model of gensim and the CPU seconds of its training, on one thread."""
    begin = time.process_time()
    model = Word2Vec(
        sentences,
        vector_size=options.dimensions,
        window=options.window,
        min_count=1,  # rare words are <unk> already
        epochs=options.epochs,
        seed=seed,
        workers=1,
        **settings,
    )
    return model, time.process_time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a file or folder of text, one sentence a line")
    parser.add_argument("--output", type=Path, required=True, help="folder for the vectors")
    parser.add_argument("--dimensions", type=int, default=52)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--min-count", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, help="words to read at most")
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    parser.add_argument("--json", type=Path, help="write the figures as one object")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    sentences, figures = sentences_of(options), {}
    for name, settings in MODELS.items():
        for seed in range(options.seeds if options.only in (None, name) else 0):
            model, seconds = trained(sentences, settings, options, seed)
            path = options.output / f"{name.replace(', ', '_').replace(' ', '_')}_{options.dimensions}_{seed}.txt"
            model.wv.save_word2vec_format(str(path))
            scores = load_file(path).evaluate()
            row = {"cpu_seconds": seconds, "similarity": scores.get("similarity")}
            row |= {key: of["accuracy"] for key, of in scores["sets"].items() if "accuracy" in of}
            figures[f"{name}, seed {seed}"] = row
            print(f"{name}, seed {seed}: " + ", ".join(f"{key} {value:.4f}" for key, value in row.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
