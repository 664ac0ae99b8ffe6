"""The table of selected groups: norms, strengths at which groups become nonzero, and groups known to be relevant."""

from __future__ import annotations

from collections.abc import Collection

from structsparse.report.living_groups import MOST_GROUPS, group_table
from structsparse.report.tables import Table
from structsparse.training import certificate
from structsparse.training.stage import StageResult


def selected_groups(result: StageResult, name: str, truth: Collection[str] = ()) -> Table | None:
    """The table of the groups that a penalty has selected or dropped; None without groups, or with too many to read.

    `name` is the name of the penalised parameter. `truth` holds the names of the groups planted in a synthetic
    corpus. The table shows below which strength each group would become nonzero, and which dead groups the gradient
    would make nonzero."""
    penalty = result.penalties.get(name)
    if penalty is None or penalty.groups is None or len(penalty.groups.names) > MOST_GROUPS:
        return None
    weights, at_zero = result.weights[name], result.at_zero.get(name)
    enters = penalty.entering(at_zero) if at_zero is not None else None
    smooth = result.module.loss.smooth
    would_wake = certificate.violated(penalty, weights, result.at_end[name]) if smooth else None
    return group_table(penalty.groups, weights, enters, would_wake, truth)
