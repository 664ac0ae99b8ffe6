"""Known dated corpora: minutes of the Federal Open Market Committee (fomc), State of the Union addresses (sotu)."""

from __future__ import annotations

from pathlib import Path

from structsparse.base.downloads import DATA_VARIABLE, data_folders
from structsparse.base.errors import UserError
from structsparse.corpora.dated import DatedCorpus
from structsparse.corpora.dated_files import DatedOptions, RawItems, corpus_of, folder_items
from structsparse.corpora.document_files import content_of, table_rows
from structsparse.corpora.series import parsed

FOMC = "a folder for each year with the minutes, whose names contain MeetingDate=YYYY-MM-DD"
SOTU = "metadata.csv (fileid, date, party) and speeches/FILEID.txt"


def fomc(**options) -> DatedCorpus:
    """Minutes of the Federal Open Market Committee, dated by the meeting (data=fomc)."""
    chosen = DatedOptions(**options, text="text", date=r"MeetingDate=(\d{4}-\d{2}-\d{2})", date_format=None, effects=[])
    return corpus_of("fomc", folder_items(_located("fomc", "minutes", FOMC), chosen), chosen)


def sotu(effects: list[str], **options) -> DatedCorpus:
    """State of the Union addresses, with their presidents and parties as possible effects (data=sotu)."""
    folder, items = _located("sotu", "speeches", SOTU), RawItems()
    for line, row in table_rows(folder.parent / "metadata.csv"):
        where = f"{folder.parent / 'metadata.csv'}, line {line}"
        missing = next((name for name in ("fileid", "date", *effects) if row.get(name) is None), None)
        if missing is not None:
            raise UserError(f"{where}: has no {missing!r}, expected {SOTU}")
        items.add(where, {**row, "text": content_of(folder / f"{row['fileid']}.txt")}, parsed(row["date"], None, where))
    chosen = DatedOptions(**options, text="text", date="date", date_format=None, effects=effects)
    return corpus_of("sotu", items, chosen)


def _located(corpus: str, inner: str, layout: str) -> Path:
    """The folder of a known dated corpus, which must be on this machine."""
    candidates = [folder / corpus / inner for folder in data_folders()]
    for path in candidates:
        if path.is_dir():
            return path
    raise UserError(
        f"corpus {corpus}: it cannot be downloaded; put it at {DATA_VARIABLE}/{corpus}/{inner} or at {candidates[-1]}: "
        f"{layout}"
    )
