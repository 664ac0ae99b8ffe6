"""Parsers: batches of arcs, steps on any device, walks from sentence to sentence against loops over dictionaries."""

from functools import partial

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import planted
from structsparse.features.filters import all_of
from structsparse.losses.structured import CRF, Hinge, Perceptron
from structsparse.penalties import GroupLasso
from structsparse.solvers.online import OnlineMIRA, OnlinePerceptron
from structsparse.structures.nonprojective import NonprojectiveTree, TorchRoute
from structsparse.tasks.parsing.data import prepare
from structsparse.tasks.parsing.model import ArcScorer, Parser, places_of_arcs
from structsparse.tasks.parsing.task import Parsing
from tests.runs.test_devices import on_meta
from tests.support.runs import asks_to_stop, at_step, run_here

LINES = [
    "{h,m}.{word,upos}", "bias", "h.upos & m.{upos,lemma}", "h.upos & m.upos & {h+1,m-1}.upos",
    "h.upos & m.upos & between.upos",
]  # fmt: skip
FEATURES = {"templates": LINES, "variants": ["plain", "direction", "distance"], "min_count": 1}
PLANTED = ("data.train=40", "data.dev=15", "data.test=20")
SOME = "['h.upos & m.upos', 'h.word', 'm.word', bias, 'h.lemma & m.upos', 'h.xpos & m.xpos']"
QUICK = (
    *("task=parsing", *PLANTED, f"features.templates={SOME}"),
    *("batch=10", "trainer.max_epochs=2"),
)


@pytest.fixture(scope="module")
def data():
    return prepare(planted(0, 30, 10, 10, 0.05), FEATURES, all_of, 0, projective=False, single_root=False)


@pytest.fixture
def parse(tmp_path):
    return lambda *options, folder="run": run_here(*options, folder=tmp_path / folder, data=QUICK, base=())


def weights(data, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(data.index), 1, generator=generator, dtype=torch.float64)


def loaded(data, seed=0):
    parser = Parser(ArcScorer(data.sizes)).double()
    parser.scorer.table.data.copy_(weights(data, seed))
    return parser


def naive_scores(data, part, sentence, table):
    """Modifiers by heads, arc by arc."""
    arrays = data.arrays[part]
    words, arc = int(arrays.lengths[sentence]), int(arrays.arcs[sentence])
    scores = np.full((words + 1, words + 1), -np.inf)
    for m in range(1, words + 1):
        for h in (h for h in range(words + 1) if h != m):
            scores[m, h] = table[arrays.bags.ids[arrays.bags.offsets[arc] : arrays.bags.offsets[arc + 1]]].sum()
            arc += 1
    return scores


def test_scores_are_sums_of_the_weights_on_an_arc(data):
    parser, table = loaded(data), weights(data).view(-1).numpy()
    batch = data.arrays["train"].batch(np.array([4, 0, 11]), 3)
    scores = parser(batch).detach().numpy()
    for k, sentence in enumerate((4, 0, 11)):
        expected = naive_scores(data, "train", sentence, table)
        size = len(expected)
        arcs = np.isfinite(expected)
        np.testing.assert_allclose(scores[k, :size, :size][arcs], expected[arcs], atol=1e-12)
        assert not scores[k, size:].any()
    heads = data.splits.train.heads
    first = data.splits.train.offsets[4]
    assert batch.gold[0, : batch.lengths[0]].tolist() == heads[first : first + int(batch.lengths[0])].tolist()


def test_arcs_have_places():
    assert places_of_arcs(np.array([2, 1]), 3).tolist() == [3, 5, 6, 7, 12]


@pytest.mark.parametrize("loss", [CRF, Hinge, Perceptron])
def test_the_compiled_route_is_the_general_one(loss, data):
    """What other devices compute."""
    batch, structure = data.arrays["train"].batch(np.arange(8), 8), NonprojectiveTree()
    parser = loaded(data)
    general = NonprojectiveTree()
    general._route = lambda scores: TorchRoute
    found = []
    for each in (structure, general):
        parser.zero_grad()
        value = loss(each)(parser(batch), batch.gold, batch.lengths)
        value.sum().backward()
        found.append((value.detach(), parser.scorer.table.grad.clone()))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(
    ("loss", "projective"), [(CRF, False), (CRF, True), (partial(Hinge, cost=1.0), True), (Perceptron, True)]
)
def test_the_training_step_asks_for_no_value(loss, projective, data):
    """But for the best tree whose arcs may cross: contracting its cycles is work for the CPU."""
    parser = Parser(ArcScorer(data.sizes), projective)
    module = Parsing(parser, loss(parser.structure), torch.optim.SGD, None, ["parser.scorer.table"]).to("meta")
    batch = on_meta(data.arrays["train"].batch(np.arange(4), 4))
    value = module.step(batch)
    assert value.shape == ()
    value.backward()
    assert parser.scorer.table.grad.shape == parser.scorer.table.shape


# --- from sentence to sentence


def loop(data, order, passive, cost, cap=1.0, rate=1.0):
    """Perceptron or MIRA over dictionaries, sentence by sentence; the last weights, their mean, the losses."""
    arrays, structure = data.arrays["train"], NonprojectiveTree()
    table, total, losses = np.zeros(len(data.index)), np.zeros(len(data.index)), []
    for sentence in order:
        scores = naive_scores(data, "train", sentence, table)
        words = len(scores) - 1
        begin, arc = arrays.offsets[sentence], arrays.arcs[sentence]
        gold = arrays.gold[begin : begin + words]
        costs = scores + cost * (np.arange(words + 1) != np.r_[-1, gold][:, None])
        rival = structure.best(torch.from_numpy(costs)[None], torch.tensor([words]))[0].numpy()
        value = sum(costs[m, rival[m - 1]] - scores[m, gold[m - 1]] for m in range(1, words + 1))
        losses.append(max(0.0, value))
        move = {}
        for m in range(1, words + 1):
            for head, sign in ((gold[m - 1], 1), (rival[m - 1], -1)):
                place = arc + (m - 1) * words + head - (head > m)
                for row in arrays.bags.ids[arrays.bags.offsets[place] : arrays.bags.offsets[place + 1]].tolist():
                    move[row] = move.get(row, 0) + sign
        length = sum(count * count for count in move.values())
        if length:
            step = rate * (min(cap, losses[-1] / length) if passive else 1.0)
            for row, count in move.items():
                table[row] += step * count
        total += table
    return table, total / len(order), losses


@pytest.mark.parametrize(("kind", "loss", "cost"), [(OnlineMIRA, Hinge, 1.0), (OnlinePerceptron, Perceptron, 0.0)])
def test_a_walk_is_a_loop_over_dictionaries(kind, loss, cost, data):
    parser = Parser(ArcScorer(data.sizes)).double()
    solver = kind([{"params": [parser.scorer.table]}], average=True)
    seen, losses = [], []
    for passage in data.passages("train", 8, seed=3):
        seen += passage.sentences.tolist()
        losses.append(float(solver.sweep(parser, loss(parser.structure), passage)) * len(passage.sentences))
    table, mean, expected = loop(data, seen, kind is OnlineMIRA, cost)
    np.testing.assert_allclose(parser.scorer.table.detach().view(-1).numpy(), table, atol=1e-10)
    assert sum(losses) == pytest.approx(sum(expected))
    assert solver.living == np.count_nonzero(table)
    solver.take_mean()
    clock = len(seen)  # the mean of the weights before each sentence but the first, and of the last ones
    np.testing.assert_allclose(parser.scorer.table.detach().view(-1).numpy(), mean, atol=1e-10)
    assert clock == len(data.arrays["train"])


def test_a_run_chooses_templates_by_budget(parse):
    run = parse("reg.budget=5")
    assert run.status == 0
    assert run.result["templates_alive"] <= 5
    assert run.result["groups"] == 18
    assert 0.3 < run.result["uas"] <= 1
    assert (run.folder / "report" / "kinds.tsv").is_file()
    assert (run.folder / "report" / "counts.tsv").is_file()


def test_a_run_that_was_stopped_ends_as_one_that_was_not(parse, monkeypatch):
    whole = parse("reg.budget=5", folder="whole")
    with monkeypatch.context() as patched:
        at_step(patched, 3, asks_to_stop(), Parsing)
        stopped = parse("reg.budget=5", folder="stopped")
    assert stopped.status != 0
    again = parse("reg.budget=5", f"ckpt_path={stopped.folder}", folder="again")
    for key in ("uas", "dev_uas", "nonzero", "templates_alive", "final_objective"):
        assert again.result[key] == whole.result[key]


@pytest.mark.parametrize(
    "options",
    [
        ("reg=none", "recipe=direct", "loss=hinge", "solver=online_mira"),
        ("reg=l2", "recipe=direct", "loss=crf", "solver=adagrad", "reg.strength=1e-4", "reg.relative=false", "batch=8"),
        ("reg=group_lasso", "reg.budget=null", "loss=crf", "solver=fista", "batch=null", "reg.strength=0.1"),
        ("task.projective=true", "task.single_root=true", "reg.budget=4"),
        ("filter=gain", "filter.count=6", "reg=none", "recipe=direct", "loss=hinge", "solver=online_mira"),
    ],
    ids=["mira", "crf", "group lasso of a crf", "projective", "gain"],
)
def test_other_learners(options, parse):
    run = parse(*options)
    assert run.status == 0, run.errors
    assert run.result["uas"] > 0.3


def test_the_whole_grammar_trains(tmp_path):
    few = ("task=parsing", "data.train=25", "data.dev=8", "data.test=8", "reg.budget=60", "trainer.max_epochs=2")
    run = run_here(*few, folder=tmp_path / "run", data=(), base=())
    assert run.status == 0, run.errors
    assert run.result["groups"] == 570  # of 684; lemmas decide the part of speech, so that 114 are copies
    assert 55 <= run.result["groups_alive"] <= 60  # those at the border that are alike die together
    assert 0.3 < run.result["las"] < run.result["uas"]


def test_parts_for_taggers_are_refused(parse):
    for options, words in (
        (("model=sparse",), "model"),
        (("groups=label",), "groups"),
        (("data=planted",), "treebank"),
        (("features.bits=0",), "expected a number of bits"),
        (("features.constant=some",), "expected true or false"),
    ):
        run = parse(*options)
        assert run.status == 2
        assert words in run.errors


def test_an_online_solver_refuses_models_without_a_sweep(data):
    solver = OnlineMIRA([{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    with pytest.raises(UserError, match="model=arcs"):
        solver.check(Parser(torch.nn.Linear(1, 1)), Hinge(NonprojectiveTree()))
    with pytest.raises(UserError, match="has no sweep over sentences for a Linear"):
        solver.check(torch.nn.Linear(1, 1), Hinge(NonprojectiveTree()))
    with pytest.raises(UserError, match="loss=perceptron or hinge"):
        solver.check(Parser(ArcScorer(data.sizes)), CRF(NonprojectiveTree()))


def test_groups_are_templates(data):
    from structsparse.features.layout import by_template

    groups = by_template((len(data.index), 1), data.layout, weights="log2_size")
    assert list(groups.names) == data.index.names
    assert groups.size.tolist() == np.diff(data.index.offsets).tolist()
    GroupLasso(groups, 1.0).prox_(torch.ones(len(data.index), 1), 0.1)
