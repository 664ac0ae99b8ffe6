"""The corpus 20 newsgroups, split by date: one of four pairs of related groups, or all groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from structsparse.base.errors import UserError
from structsparse.corpora.document_files import RawDocuments, assembled, content_of, files_of
from structsparse.corpora.documents import DocumentReading, DocumentSplits
from structsparse.corpora.known.catalog import NEWSGROUPS
from structsparse.corpora.splits import drawn

PAIRS = {  # for each pair: two newsgroups, and how many train posts become dev (Yogatama 2015)
    "science": (("sci.med", "sci.space"), 235),
    "sports": (("rec.sport.baseball", "rec.sport.hockey"), 239),
    "religion": (("alt.atheism", "soc.religion.christian"), 209),
    "computer": (("comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware"), 239),
}
DEV_SHARE = 0.2  # share of train that becomes dev if all newsgroups are used (pair=all)
REMOVABLE = "headers", "quotes", "footers"  # parts of a post that can be removed
# matches lines that quote another post or say who is quoted
_QUOTE = re.compile(r"writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>")


def newsgroups(
    pair: str,
    remove: Sequence[str],
    tokens: str,
    lower: bool,
    parses: Mapping[str, str] | None,
    split: int,
    others: bool = False,
) -> DocumentSplits:
    """The posts of a pair of newsgroups, or of all newsgroups (data=newsgroups), in train, dev and test.

    Dev is a random part of train. With `others`, training posts of all other newsgroups are added as texts without
    labels."""
    if pair not in (*PAIRS, "all"):
        raise UserError(f"data.pair is {pair!r}, expected one of {', '.join(PAIRS)}, all")
    unknown = [part for part in remove if part not in REMOVABLE]
    if unknown:
        raise UserError(f"data.remove has {', '.join(map(str, unknown))}, expected some of {', '.join(REMOVABLE)}")
    root = NEWSGROUPS.locate()
    groups, size = PAIRS[pair] if pair != "all" else (_groups(root), None)
    raw = {part: _posts(root / part, groups, remove) for part in ("train", "test")}
    reading = DocumentReading(tokens, lower)
    parts = assembled(raw, False, groups, reading, parses)
    if size is None:
        size = round(DEV_SHARE * len(parts["train"]))
    parts |= drawn(parts["train"], {"dev": size}, split)
    other_groups = [group for group in _groups(root) if group not in groups] if others else []
    unlabelled = tuple(_posts(root / "train", other_groups, remove).texts)
    splits = parts["train"], parts["dev"], parts["test"]
    return DocumentSplits(f"newsgroups_{pair}", *splits, reading=reading, unlabelled=unlabelled)


def stripped(post: str, remove: Sequence[str]) -> str:
    """Remove the headers, quotes and footer of a newsgroup post; `remove` says which of these.

    Headers end at the first empty line. Quotes are lines that quote another post or say who is quoted. The footer is
    the text from the last line that is empty or all dashes."""
    if "headers" in remove:
        post = post.partition("\n\n")[2]
    if "quotes" in remove:
        post = "\n".join(line for line in post.split("\n") if _QUOTE.search(line) is None)
    if "footers" in remove:
        lines = post.strip().split("\n")
        last = max((k for k, line in enumerate(lines) if not line.strip().strip("-")), default=0)
        post = "\n".join(lines[:last]) if last else post
    return post


def _groups(root: Path) -> tuple[str, ...]:
    """The names of all newsgroups, sorted."""
    return tuple(sorted(path.name for path in (root / "train").iterdir() if path.is_dir()))


def _posts(folder: Path, groups: Sequence[str], remove: Sequence[str]) -> RawDocuments:
    """The posts of some newsgroups in a folder; the label of a post is the name of the newsgroup."""
    raw = RawDocuments()
    for group in groups:
        if not (folder / group).is_dir():
            raise UserError(f"{folder / group}: no such folder, expected the posts of {group}")
        for path in files_of(folder / group):
            raw.add(str(path), stripped(content_of(path), remove), group)
    return raw
