"""Templates of a tagger that suit the columns of its corpus and the time for training.

- Templates of columns that the corpus lacks are left out.
- Useful columns that no template reads get templates.
- The large list of templates replaces the standard list if there is time for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.features.attributes import OF_WORD, is_morphological
from structsparse.tasks.tagging.features.large import fits, wants_large
from structsparse.tasks.tagging.features.templates import Template, expand, is_name, parse

WINDOW = "1-grams of {}[-1..1]"  # template line for a further column
AUTO = "auto"  # the value of features.columns for all useful columns that no template reads
REPEATED = 0.5  # a useful column has, at this share of its tokens or more, values that occur in several sentences
RISING = 0.9  # a column counts tokens if at least this share of its numbers exceeds the number at the token before


def suited(
    features: Mapping, sentences: Sentences, tag: str, further: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The template lines of a tagger for its corpus, and notes for the user.

    `features` holds the options. The lines `further` are templates to add. Templates of a missing column are left out
    of the standard list and of the large list. In a list that the user has written they stay, and a later step refuses
    them."""
    lines, standard = ([str(line) for line in features.get(name) or ()] for name in ("templates", "standard"))
    own = bool(standard) and lines != standard
    templates, notes = _without_missing(expand(lines), sentences) if lines == standard else (expand(lines), [])
    if wants_large(features, own):
        large, about = _without_missing(expand(features["large_templates"]), sentences)
        fitting, message = fits(features, len(large), sentences.tokens)
        templates, notes = (large, [*message, *about]) if fitting else (templates, [*message, *notes])
    of_columns, messages = _of_columns(features, templates, sentences, tag, own)
    of_lines = [template for line in further for template in parse(line)]
    names = dict.fromkeys(template.name for template in (*templates, *of_columns, *of_lines))
    return [*names], [*notes, *messages]


def _without_missing(templates: list[Template], sentences: Sentences) -> tuple[list[Template], list[str]]:
    """The given templates of a tagger without those that read missing columns, and a note for the user."""
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


# --- further columns: those that the list of templates does not read


def _of_columns(
    features: Mapping, templates: Collection[Template], sentences: Sentences, tag: str, own: bool
) -> tuple[list[Template], list[str]]:
    """The templates of further columns (option features.columns) for a tagger, and notes for the user.

    `own`: whether the user has written the list of templates."""
    wanted, notes = features.get("columns") or (), []
    if wanted == AUTO:
        used = {"word", *(features.get("dense") or ()), *(name for t in templates for name, _ in t.atoms)}
        wanted, notes = ([], []) if own else _useful(sentences, tag, used)
    if isinstance(wanted, str) or not all(isinstance(name, str) for name in wanted):
        raise UserError(f"features.columns is {features['columns']!r}, expected a list of columns, or {AUTO}")
    for name in wanted:
        if name not in sentences.columns:
            raise UserError(f"features.columns: the corpus has no column {name}, it has {', '.join(sentences.columns)}")
    further = expand([WINDOW.format(name) for name in wanted]) if wanted else []
    if further:
        notes.append(f"templates of further columns: {', '.join(map(str, further))}")
    return further, notes


def _useful(sentences: Sentences, tag: str, used: Collection[str]) -> tuple[list[str], list[str]]:
    """The names of further columns that may help a tagger to predict the tag, and notes about rejected columns.

    `used` has the columns that are read already. Columns to the right of the tag are rejected, because they are usually
    made from it, such as chunks from parts of speech."""
    names, useful, notes = list(sentences.columns), [], []
    right = names[names.index(tag) + 1 :] if tag in names else []
    for name in names:
        if name == tag or name in used:
            continue
        reason = f"it is to the right of {tag}, the column to predict" if name in right else _reason(name, sentences)
        if reason is None:
            useful.append(name)
        else:
            notes.append(f"column {name} has no templates: {reason}")
    return useful, notes


def _reason(name: str, sentences: Sentences) -> str | None:
    """The reason why a column cannot help a tagger to predict the tag; None if it may help."""
    column, sentence = sentences.columns[name], np.repeat(np.arange(len(sentences)), sentences.lengths)
    if not is_name(name):
        return "templates cannot spell its name"
    if len(np.unique(column.codes)) < 2:
        return "it has one value only"
    pairs = np.unique(np.stack([column.codes, sentence]), axis=1)  # the distinct pairs of value and sentence
    repeated = np.bincount(pairs[0], minlength=len(column.values)) > 1
    if repeated[column.codes].mean() < REPEATED:
        return "most of its values occur in one sentence only"
    inner = sentence[1:] == sentence[:-1]
    numbers = _numbers(column)
    if inner.any() and (numbers[1:] > numbers[:-1])[inner].mean() >= RISING:
        return "its numbers count the tokens"
    return None


def _numbers(column: Column) -> np.ndarray:
    """The numbers in a column of a tagger's corpus, float64 [tokens]; NaN where a value is no whole number."""
    values = [int(value) if value.isascii() and value.isdecimal() else np.nan for value in column.values]
    return np.array(values, dtype=np.float64)[column.codes]
