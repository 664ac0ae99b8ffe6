"""Groups of the entries of one parameter: a group penalty sets all entries of a group to zero together."""

from structsparse.groups.cover import Cover, cover_entries, cover_families, cover_rows
from structsparse.groups.forest import Forest, by_parents
from structsparse.groups.layouts import over
from structsparse.groups.partition import Partition, by_column, by_row, by_row_blocks
from structsparse.groups.repeated import RepeatedCover, RepeatedForest

__all__ = [
    "Cover",
    "Forest",
    "Partition",
    "RepeatedCover",
    "RepeatedForest",
    "by_column",
    "by_parents",
    "by_row",
    "by_row_blocks",
    "cover_entries",
    "cover_families",
    "cover_rows",
    "over",
]
