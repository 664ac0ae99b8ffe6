"""Groups of a tagger's table: the order of templates, coarse before fine."""

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups.orders import coarse_to_fine
from structsparse.tasks.tagging.features.groups import template_order
from structsparse.tasks.tagging.features.templates import expand
from tests.groups.test_orders import rows_of


def test_the_order_of_templates_is_that_of_their_parts():
    names = [
        t.name for t in expand(["1-3-grams of pos[-1..1]", "word[0]", "word[0] & pos[0]", "pos[0] & word[0] & pos[1]"])
    ]
    parts = [set(t.atoms) for t in expand(names)]
    expected = torch.tensor([[a < b for b in parts] for a in parts])
    assert torch.equal(template_order(names), expected)
    assert expected.sum() > 10
    made = coarse_to_fine((len(names), 1), names, range(len(names) + 1), expected)
    assert rows_of(made, "word[0]") == [
        names.index(n) for n in ("word[0]", "word[0] & pos[0]", "pos[0] & word[0] & pos[1]")
    ]


def test_a_name_that_is_no_template_is_refused():
    with pytest.raises(UserError, match="template 'p': 'p' is not understood"):
        template_order(["p", "w"])
