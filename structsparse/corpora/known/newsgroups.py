"""20 newsgroups, the posts by date: four pairs of related groups, or all groups that there are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from structsparse.base.errors import UserError
from structsparse.corpora.document_files import Raw, assembled, content_of, files_of
from structsparse.corpora.documents import Labelled, Reading
from structsparse.corpora.known.catalog import NEWSGROUPS
from structsparse.corpora.splits import drawn

PAIRS = {  # the groups, and how many posts of train Yogatama (2015) has for dev
    "science": (("sci.med", "sci.space"), 235),
    "sports": (("rec.sport.baseball", "rec.sport.hockey"), 239),
    "religion": (("alt.atheism", "soc.religion.christian"), 209),
    "computer": (("comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware"), 239),
}
DEV_SHARE = 0.2
REMOVABLE = "headers", "quotes", "footers"
_QUOTE = re.compile(r"writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>")


def newsgroups(
    pair: str,
    remove: Sequence[str],
    tokens: str,
    lower: bool,
    parses: Mapping[str, str] | None,
    split: int,
    others: bool = False,
) -> Labelled:
    """The posts of a pair; dev is a random part of train, in the old order. `others`: those of train in the other
    groups as texts without labels."""
    if pair not in (*PAIRS, "all"):
        raise UserError(f"data.pair is {pair!r}, expected one of {', '.join(PAIRS)}, all")
    unknown = [what for what in remove if what not in REMOVABLE]
    if unknown:
        raise UserError(f"data.remove has {', '.join(map(str, unknown))}, expected some of {', '.join(REMOVABLE)}")
    root = NEWSGROUPS.locate()
    groups, size = PAIRS[pair] if pair != "all" else (_groups(root), None)
    raw = {part: _posts(root / part, groups, remove) for part in ("train", "test")}
    reading = Reading(tokens, lower)
    parts = assembled(raw, False, groups, reading, parses)
    if size is None:
        size = round(DEV_SHARE * len(parts["train"]))
    parts |= drawn(parts["train"], {"dev": size}, split)
    names = parts["train"], parts["dev"], parts["test"]
    rest = [group for group in _groups(root) if group not in groups] if others else []
    unlabelled = tuple(_posts(root / "train", rest, remove).texts)
    return Labelled(f"newsgroups_{pair}", *names, reading=reading, unlabelled=unlabelled)


def stripped(post: str, remove: Sequence[str]) -> str:
    """A post without its headers (up to the first empty line), quotes (lines that quote, or say who is quoted) and
    footer (what follows the last line that is empty or all dashes)."""
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
    return tuple(sorted(path.name for path in (root / "train").iterdir() if path.is_dir()))


def _posts(folder: Path, groups: Sequence[str], remove: Sequence[str]) -> Raw:
    raw = Raw()
    for group in groups:
        if not (folder / group).is_dir():
            raise UserError(f"{folder / group}: no such folder, expected the posts of {group}")
        for path in files_of(folder / group):
            raw.add(str(path), stripped(content_of(path), remove), group)
    return raw
