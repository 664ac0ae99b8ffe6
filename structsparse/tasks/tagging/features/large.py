"""The large list of templates of a tagger (`features.large`), and whether there is time to train with it."""

from __future__ import annotations

from collections.abc import Mapping

from structsparse.base.errors import UserError

AUTO = "auto"  # value of features.large: the estimated time of training decides
SECONDS = 90  # maximum estimated time of training for which features.large=auto takes the large list
# CPU seconds of a fit of 40 iterations, divided by tokens and by templates, on one core of a busy machine. Measured as
# seconds_fit = 173 with 264,715 tokens and 452 templates, by the command
#     python train.py task=ner data=conll2002_esp preset=fast features=martins_entities
SECONDS_PER_TOKEN = 1.4e-6


def wants_large(features: Mapping, own: bool) -> bool:
    """Whether a tagger may take the large list of templates: whether the option features.large is true or auto.

    `features` holds the options. `own` says whether the user has written a list of templates; then true and auto are
    errors."""
    wanted = features.get("large", False)
    if wanted not in (True, False, AUTO):
        raise UserError(f"features.large is {wanted!r}, expected true, false or {AUTO}")
    if wanted and own:
        raise UserError(f"features.large={str(wanted).lower()} replaces features.templates: give one of the two")
    return wanted is not False


def fits(features: Mapping, templates: int, tokens: int) -> tuple[bool, list[str]]:
    """Whether a tagger has time to train with the large list of templates, and a note for the user.

    `features` holds the options. Its entry `fits` is the approximate number of fits in the training. `templates` is the
    number of templates in the large list, and `tokens` the number of tokens in train."""
    if features["large"] is True:
        return True, []
    seconds = tokens * templates * SECONDS_PER_TOKEN * (features.get("fits") or 1)
    fitting = seconds <= SECONDS
    reason = f"at most {SECONDS}: they are taken" if fitting else f"more than {SECONDS}: the standard list is taken"
    return fitting, [f"features.large: {templates} templates would train for about {seconds:,.0f} seconds, {reason}"]
