"""Templates of a tagger that suit the columns of a corpus: without missing columns, and with further columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences
from structsparse.features.attributes import OF_WORD, is_morphological
from structsparse.tasks.tagging.features.templates import Template, expand, parse

WINDOW = "1-grams of {}[-1..1]"  # templates of each further column
AUTO = "auto"  # the value of features.columns for all columns that no template reads


def suited(
    features: Mapping, sentences: Sentences, tag: str, further: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The template lines of a tagger for the columns of its corpus, and notes for the user.

    `features` holds the options. Templates of a missing column are left out if the list of templates is the standard
    one. Otherwise, the user has written them, and a later step refuses them. Templates of the lines `further` are
    added if they are not in the list."""
    lines = [str(line) for line in features["templates"]]
    templates, notes = expand(lines), []
    if lines == [str(line) for line in features.get("standard") or ()]:
        templates, notes = _without_missing(templates, sentences)
    of_columns, messages = _of_columns(features, templates, sentences, tag)
    of_lines = [template for line in further for template in parse(line)]
    names = dict.fromkeys(template.name for template in (*templates, *of_columns, *of_lines))
    return [*names], [*notes, *messages]


def _without_missing(templates: list[Template], sentences: Sentences) -> tuple[list[Template], list[str]]:
    """The standard templates of a tagger whose columns are in the corpus, and a note for the user."""
    missing = sorted({name for t in templates for name, _ in t.atoms if not _available(name, sentences)})
    kept = [template for template in templates if not {name for name, _ in template.atoms} & {*missing}]
    if not missing or not kept:
        return templates, []
    columns = ", ".join(sentences.columns)
    count = len(templates) - len(kept)
    return kept, [f"no column {', '.join(missing)} in the corpus ({columns}): {count} templates are left out"]


def _available(name: str, sentences: Sentences) -> bool:
    """Whether an attribute in the templates of a tagger is a column of the corpus or made from one."""
    if name in sentences.columns:
        return True
    return (name in OF_WORD and "word" in sentences.columns) or (
        is_morphological(name) and "feats" in sentences.columns
    )


def _of_columns(
    features: Mapping, templates: Collection[Template], sentences: Sentences, tag: str
) -> tuple[list[Template], list[str]]:
    """The templates of further columns (option features.columns) for a tagger, and a note for the user."""
    wanted = features.get("columns") or ()
    used = {tag, "word", *(features.get("dense") or ()), *(name for t in templates for name, _ in t.atoms)}
    if wanted == AUTO:
        wanted = [name for name in sentences.columns if name not in used]
    if isinstance(wanted, str) or not all(isinstance(name, str) for name in wanted):
        raise UserError(f"features.columns is {features['columns']!r}, expected a list of columns, or {AUTO}")
    for name in wanted:
        if name not in sentences.columns:
            raise UserError(f"features.columns: the corpus has no column {name}, it has {', '.join(sentences.columns)}")
    further = expand([WINDOW.format(name) for name in wanted]) if wanted else []
    return further, [f"templates of further columns: {', '.join(map(str, further))}"] if further else []
