"""Sentences from Python lists: lists of words, or lists of tuples or dicts with the columns of each token."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences


def sentences_from_lists(sentences: Iterable, columns: Sequence[str], reader: str = "this model") -> Sentences:
    """Make sentences (columns of codes) from Python lists of tokens.

    A token is a tuple of values in the order of `columns`, or a dict. With one column, a token is a string. Error
    messages say that `reader` (for example "this model") expects such lists."""
    if isinstance(sentences, str | bytes | Mapping) or not isinstance(sentences, Iterable):
        raise UserError(f"got {sentences!r:.60}; {expected_lists(columns, reader)}")
    tokens, ends = [], [0]
    for number, sentence in enumerate(sentences, start=1):
        if isinstance(sentence, str | bytes | Mapping) or not isinstance(sentence, Iterable):
            raise UserError(f"sentence {number} is {sentence!r:.60}; {expected_lists(columns, reader)}")
        for token in sentence:
            values = _values(token, columns)
            if values is None:
                raise UserError(f"a token of sentence {number} is {token!r:.60}; {expected_lists(columns, reader)}")
            tokens.append(values)
        ends.append(len(tokens))
    columns_of_tokens = zip(*tokens, strict=True) if tokens else ((),) * len(columns)
    named = zip(columns, columns_of_tokens, strict=True) if columns else ()
    return Sentences({name: Column.from_strings(values) for name, values in named}, np.array(ends), "sentences")


def existing_file(path: str | os.PathLike, columns: Sequence[str], reader: str = "this model") -> Path:
    """The path of an existing file, for functions that accept a path or lists of sentences.

    If the file is missing, the error message describes the accepted lists too."""
    if not Path(path).exists():
        raise UserError(f"{str(path)!r:.60} is not a file; {expected_lists(columns, reader)}, or the path of a file")
    return Path(path)


def expected_lists(columns: Sequence[str], reader: str) -> str:
    """Description, for error messages, of the lists that `sentences_from_lists` accepts."""
    if len(columns) < 2:
        token = f"each a list of {'words' if tuple(columns) in ((), ('word',)) else f'values of {columns[0]}'} (str)"
    else:
        token = f"each a list of tokens, each a tuple ({', '.join(columns)}) or a dict with these keys"
    return f"{reader} expects a list of sentences, {token}"


def _values(token: object, columns: Sequence[str]) -> list[str] | None:
    """The values of a token from a list, in the order of the columns; None if the token is malformed."""
    if not columns:
        return []
    if isinstance(token, str):
        return [token] if len(columns) == 1 else None
    if isinstance(token, Mapping):
        values = [token.get(name) for name in columns]
    elif isinstance(token, Sequence) and not isinstance(token, bytes) and len(token) == len(columns):
        values = [*token]
    else:
        return None
    fits = all(isinstance(value, str | int | float | np.number) and not isinstance(value, bool) for value in values)
    return [str(value) for value in values] if fits else None
