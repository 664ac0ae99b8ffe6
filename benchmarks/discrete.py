"""Time of an outer iteration of reg=discrete against the same iterations of the solver without it.

python benchmarks/discrete.py [--json FILE] [--quick]
"""

import logging
import os
import warnings

from timing import arguments, clock, print_table, write_json

options = arguments(__doc__.splitlines()[0])  # before torch makes its threads

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from structsparse.base.errors import UserError  # noqa: E402
from structsparse.corpora.known.tagging import known, planted  # noqa: E402
from structsparse.losses.structured import CRF  # noqa: E402
from structsparse.penalties import L1, Copied, Discrete  # noqa: E402
from structsparse.penalties.discrete import learn  # noqa: E402
from structsparse.solvers.quasi_newton import ProximalQuasiNewton  # noqa: E402
from structsparse.tasks.tagging.data import prepare  # noqa: E402
from structsparse.tasks.tagging.model import Tagger  # noqa: E402
from structsparse.tasks.tagging.task import Tagging, curvatures  # noqa: E402
from structsparse.training.callbacks.outer import Admm  # noqa: E402
from structsparse.weights.notes import notes_of  # noqa: E402
from structsparse.weights.observed_pairs import PairScorer  # noqa: E402

TEMPLATES = ["1-grams of word[-2..2]", "2-grams of word[-1..1]", "1-3-grams of pos[-2..2]"]
INNER, WARM = 2, 30  # iterations of the solver in an outer one; those before anything is timed


def corpus():
    try:
        splits = known("conll2000", ["word", "pos", "tag"], "iob2", "repair", "never", held_out=0.1, seed=0)
        return "CoNLL-2000", splits
    except UserError:
        return "a planted corpus", planted(train=2000, dev=200, test=200, seed=0)


class Side:
    """A tagger and its solver, from the same weights."""

    def __init__(self, data, weights=None):
        self.tagger = Tagger(PairScorer(data.sizes, observed=True), data.sizes.labels)
        loss = CRF(self.tagger.structure)
        self.module = Tagging(self.tagger, loss, None, None, [])
        for name, curvature in curvatures(data, self.tagger.scorer.pairs).items():
            notes_of(self.tagger.get_parameter(name.removeprefix("tagger."))).curvature = curvature
        if weights is not None:
            self.tagger.load_state_dict(weights)
        self.parameters: dict[str, nn.Parameter] = dict(self.tagger.named_parameters())
        self.batch = next(iter(data.batches("train", None)))
        self.solver = ProximalQuasiNewton(list(self.parameters.values()), tolerance=0.0)
        self.evaluations = 0

    def attach(self, penalties):
        self.solver.attach({self.parameters[name]: penalty for name, penalty in penalties.items()})

    def closure(self):
        self.evaluations += 1
        loss = self.module.step(self.batch)
        loss.backward()
        return loss

    def step(self):
        self.solver.step(self.closure)


def main():
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    name, splits = corpus()
    data = prepare(splits, TEMPLATES if name == "CoNLL-2000" else ["word[0]", "suffix3[0]", "pos[-1..1]"])
    items = data.items
    base = Side(data)
    base.attach({key: L1(1.0 / items) for key in base.parameters})
    for _ in range(WARM):
        base.step()
    weights = {key: value.clone() for key, value in base.tagger.state_dict().items()}
    figures, rows = {}, []
    for levels in (1, 4) if options.quick else (1, 2, 4, 8):
        found = side_by_side(data, weights, levels, items)
        rows.append((f"levels {levels}", *found.values()))
        figures |= {f"{key}_{levels}": value for key, value in found.items()}
    for ratio in ("outer_over_iterations", "outer_over_plain"):
        figures[ratio] = max(value for key, value in figures.items() if key.startswith(f"{ratio}_"))
    print_table(
        f"{name}, {items} sentences, {sum(p.numel() for p in base.parameters.values())} weights, "
        f"{INNER} iterations of proximal quasi-Newton in an outer one; milliseconds",
        ("", "outer iteration", "iterations in it", "plain l1", "outer / in it", "outer / plain"),
        rows,
    )
    print(f"an outer iteration over the iterations in it: {figures['outer_over_iterations']:.3f} (bar: 1.15)")
    write_json(options.json, figures)


def side_by_side(data, weights, levels, items):
    """Both go on from the trained model, turn by turn: INNER steps under l1, and the same with all that copies need."""
    now, rounds = clock(options.threads), 8 if options.quick else 20
    base, ours = Side(data, weights), Side(data, weights)
    base.attach({key: L1(1.0 / items) for key in base.parameters})
    penalties = {key: Discrete(levels=levels, values="kmeans", learn=True) for key in ours.parameters}
    Discrete.at_start(penalties, ours.parameters)
    admm = Admm(growth=1.02)
    copies = {
        key: Copied(penalties[key], p, admm.pull(p, items), 1.0 / items, admm.rate, admm.growth)
        for key, p in ours.parameters.items()
    }
    ours.attach(copies)
    spent = {"plain": [], "outer": [], "inside": []}
    for _ in range(rounds):
        begin = now()
        for _ in range(INNER):
            base.step()
        spent["plain"].append(now() - begin)
        begin = now()
        for _ in range(INNER):
            ours.step()
        middle = now()
        with torch.no_grad():
            learn(copies, ours.parameters)
            for key, copied in copies.items():
                copied.outer_update(ours.parameters[key])
                shown = ours.parameters[key].clone()  # as for the look at dev after each
                ours.parameters[key].copy_(copied.copy).copy_(shown)
        ours.solver.renew()
        end = now()
        spent["outer"].append(end - begin)
        spent["inside"].append(middle - begin)
    outer, inside, plain = (1e3 * float(np.median(spent[key])) for key in ("outer", "inside", "plain"))
    return {
        "ms_outer": outer, "ms_iterations": inside, "ms_plain": plain,
        "outer_over_iterations": outer / inside, "outer_over_plain": outer / plain,
    }  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
