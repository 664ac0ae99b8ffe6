"""Which entries of one parameter belong together: the groups that a penalty switches off as one."""

from structsparse.groups.partition import Partition, by_column, by_row, by_row_blocks

__all__ = ["Partition", "by_column", "by_row", "by_row_blocks"]
