"""Models, losses and groups that do not fit a task or a penalty are refused, and the message lists what fits."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.features.layout import by_template, by_template_tree
from structsparse.features.word_groups import sentences
from structsparse.groups import Cover, Forest, Partition
from structsparse.groups.layouts import ANY, declared, over
from structsparse.losses.pointwise import Logistic
from structsparse.losses.softmax import SoftmaxLM
from structsparse.losses.structured import CRF
from structsparse.penalties import L1, GroupLasso, OverlappingGroupLasso, TreeGroupLasso
from structsparse.tasks.parsing.model import ArcScorer
from structsparse.tasks.parsing.task import ParsingTask
from structsparse.tasks.tagging.features.groups import by_coarse_to_fine
from structsparse.tasks.tagging.model import SparseScorer
from structsparse.tasks.tagging.task import TaggingTask
from structsparse.tasks.textcat.task import TextcatTask, bag
from structsparse.training import legality
from structsparse.training.terms import Term


def stage(scorer, loss, penalty=None, groups=None, name="reg"):
    terms = [Term(name, partial(penalty), groups, 0.1, True, False, ["*"])] if penalty else []
    return SimpleNamespace(scorer=partial(scorer), loss=partial(loss), terms=terms)


def refusal(task, *parts, **options) -> str:
    with pytest.raises(UserError) as error:
        legality.check(task, stage(*parts, **options))
    return str(error.value)


def test_groups_of_another_table_are_named_and_those_that_fit_are_listed():
    message = refusal(TextcatTask(), bag, Logistic, GroupLasso, partial(by_template, weights="one"))
    assert message.startswith(
        "groups=template is for a table of templates or arcs, the table of this task is one of words"
    )
    assert "choose groups=file, module_columns" in message
    assert "; or groups=brown, combined, constituents, documents, planted, sentences" in message
    assert message.endswith(" with reg=nested, overlap, overlap_sequential, structured")
    assert "label" not in message


def test_groups_of_a_form_that_the_penalty_does_not_take_are_refused_before_they_are_made():
    message = refusal(TaggingTask(), SparseScorer, CRF, GroupLasso, by_coarse_to_fine)
    assert message.startswith(
        "groups=coarse_to_fine makes overlapping groups, GroupLasso takes disjoint groups: choose"
    )
    assert "groups=feature, label, template, file" in message
    assert "sentences" not in message
    message = refusal(TaggingTask(), SparseScorer, CRF, TreeGroupLasso, by_template)
    assert "TreeGroupLasso takes nested groups: choose groups=template_tree, file; or groups=" in message
    message = refusal(TaggingTask(), SparseScorer, CRF, TreeGroupLasso, by_template, name="also.chain")
    assert message.startswith("also.chain.groups=template makes disjoint groups")


def test_a_penalty_that_needs_groups_says_so():
    assert refusal(TaggingTask(), SparseScorer, CRF, GroupLasso).startswith("GroupLasso needs disjoint groups: choose")
    legality.check(TaggingTask(), stage(SparseScorer, CRF, L1))


def test_models_and_losses_of_another_task_are_refused():
    message = refusal(ParsingTask(), SparseScorer, CRF)
    assert message == "model=sparse does not fit a table of arcs: choose model=arcs, arcs_growing"
    assert refusal(TaggingTask(), ArcScorer, CRF).endswith(
        "choose model=growing, pairs, recurrent, sparse, sparse_dense"
    )
    message = refusal(TaggingTask(), SparseScorer, SoftmaxLM)
    assert message == "loss=softmax does not fit a table of templates: choose loss=crf, hinge, perceptron"


def test_parts_from_outside_the_package_are_accepted():
    class Own(torch.nn.Module):
        pass

    def own_groups(shape, layout, parameter=""):
        return Partition(torch.zeros(1, 1, dtype=torch.long), ["all"], shape)

    assert legality.check(TaggingTask(), stage(Own, Own, GroupLasso, own_groups)) is None
    assert legality.check(TextcatTask(), stage(Own, Own, OverlappingGroupLasso, own_groups)) is None


def test_makers_declare_kinds_and_forms():
    assert declared(partial(partial(by_template, weights="one"), parameter="x")).kinds == ("templates", "arcs")
    assert declared(by_template_tree).forms == (Forest,)
    assert declared(sentences).forms == (Cover,)
    assert declared(len).kinds == (ANY,)

    @over("words", "arcs", makes=(Partition, Cover))
    def made(shape, layout, parameter=""):
        raise NotImplementedError

    assert declared(made).fits("arcs")
    assert not declared(made).fits("templates")


@pytest.mark.parametrize("part", ["groups", "model", "loss", "reg"])
def test_every_option_resolves(part):
    for target in legality.targets(part).values():
        assert callable(legality.resolved(target))
