"""Dated corpora: the user's files, two known corpora (fomc, sotu), or planted drift.

- fomc: minutes of the Federal Open Market Committee, dated by the meeting
- sotu: State of the Union addresses, with the columns of metadata.csv as possible effects"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from structsparse.base.downloads import DATA_VARIABLE, data_folders, find_path
from structsparse.base.errors import UserError
from structsparse.corpora.dated import DatedCorpus
from structsparse.corpora.dated_files import DatedOptions, RawItems, corpus_of, folder_items, table_items
from structsparse.corpora.document_files import content_of, table_rows
from structsparse.corpora.planted.drift import planted_drift
from structsparse.corpora.series import parsed

LAYOUTS = {  # for each known corpus: the folder below its own, and what it should hold
    "fomc": ("minutes", "a folder for each year with the minutes, whose names contain MeetingDate=YYYY-MM-DD"),
    "sotu": ("speeches", "FILEID.txt, and beside this folder metadata.csv with the columns fileid, date, party"),
}


def dated(
    corpus: str | None,
    train: str | None,
    text: str | None,
    date: str,
    date_format: str | None,
    response: str | None,
    classes: Sequence[str] | None,
    effects: Sequence[str],
    series: Sequence[str],
    lag: int,
    response_series: Mapping[str, object] | None,
    period: str,
    until: str | int | None,
    min_documents: int,
    min_words: int,
    test: int,
    dev: int,
    join_dev: bool,
    tokens: str,
    lower: bool,
    planted: Mapping[str, object],
) -> DatedCorpus:
    """Read dated items: a known corpus, the user's files, or without both a planted corpus (data=dated)."""
    options = DatedOptions(
        text, date, date_format, response, classes, effects, series, lag, response_series, period, until, min_documents,
        min_words, test, dev, join_dev, tokens, lower,
    )  # fmt: skip
    if corpus is not None:
        return corpus_of(corpus, _known(corpus, options), options)
    if train is None:
        return planted_drift(**planted)
    path = find_path(train)
    return corpus_of("dated", folder_items(path, options) if path.is_dir() else table_items(path, options), options)


def _known(corpus: str, options: DatedOptions) -> RawItems:
    """The dated items of a known corpus."""
    if corpus not in LAYOUTS:
        raise UserError(f"data.corpus is {corpus!r}, expected one of {', '.join(LAYOUTS)}, or null")
    return folder_items(_located(corpus), options) if corpus == "fomc" else _addresses(_located(corpus), options)


def _addresses(folder: Path, options: DatedOptions) -> RawItems:
    """State of the Union addresses, dated by metadata.csv."""
    items, table = RawItems(), folder.parent / "metadata.csv"
    for line, row in table_rows(table):
        where = f"{table}, line {line}"
        missing = next((name for name in ("fileid", "date", *options.effects) if row.get(name) is None), None)
        if missing is not None:
            raise UserError(f"{where}: has no {missing!r} ({', '.join([*row][:10])})")
        items.add(where, {**row, "text": content_of(folder / f"{row['fileid']}.txt")}, parsed(row["date"], None, where))
    return items


def _located(corpus: str) -> Path:
    """The folder of a known dated corpus, which must be on this machine."""
    inner, layout = LAYOUTS[corpus]
    candidates = [folder / corpus / inner for folder in data_folders()]
    for path in candidates:
        if path.is_dir():
            return path
    raise UserError(
        f"corpus {corpus}: it cannot be downloaded; put it at {DATA_VARIABLE}/{corpus}/{inner} or at {candidates[-1]}: "
        f"{layout}"
    )
