"""How the stages of a run build parsers, and what one stage hands to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from structsparse import report
from structsparse.parser import ArcScorer, Parser
from structsparse.parsing import artifact
from structsparse.parsing.predictor import DependencyParser
from structsparse.recipe import Outcome, Stage
from structsparse.tasks import parsing_report
from structsparse.tasks.parsing import Parsing, ParsingData
from structsparse.tasks.relations import Labelling
from structsparse.tasks.task import Placed, Task, check_parts, fingerprint
from structsparse.terms import borne, place

TABLE = "parser.scorer.table"


class ParserTask(Task):
    def build(self, stage: Stage, data: ParsingData) -> tuple[Parsing, Placed]:
        check_parts(stage, "parsers")
        parser = _parser(stage, data)
        parameters = {f"parser.{name}": p for name, p in parser.named_parameters()}
        placed = place(stage.terms, parameters, data.layout, {})
        names = [name for _, penalties in placed for name in penalties]
        loss = stage.loss(parser.structure)
        identity = fingerprint(
            stage, data.index.names, data.projective, data.single_root, np.ascontiguousarray(data.index.keys)
        )
        module = Parsing(parser, loss, stage.optimizer, data.score, names, stage.final_lr, identity)
        if isinstance(parser.scorer, ArcScorer):
            counts = np.bincount(data.arrays["train"].bags.ids, minlength=len(data.index))
            parser.scorer.table.curvature = torch.from_numpy((counts / data.items).astype(np.float32))[:, None]
        return module, placed

    def foresee(self, stage: Stage, data: ParsingData, optimizer: torch.optim.Optimizer) -> None:
        check_parts(stage, "parsers")
        with torch.device("meta"):
            parser = _parser(stage, data)
        borne(stage.terms, [f"parser.{name}" for name, _ in parser.named_parameters()])

    def check(self, stage: Stage, module: Parsing, optimizer: torch.optim.Optimizer, support: Mapping) -> None:
        if hasattr(optimizer, "sweep"):
            optimizer.check(module.parser, module.loss)

    def narrow(self, before: Outcome, support: dict[str, Tensor]) -> tuple[ParsingData, dict[str, Tensor]]:
        """Rows that are dead leave the data; a row is one weight, so that no support is left to watch over."""
        if TABLE not in support:
            return before.data, {}
        return before.data.keep(support[TABLE].view(-1).cpu().numpy()), {}

    @torch.no_grad()
    def inherit(self, module: Parsing, before: Outcome, support: dict[str, Tensor]) -> None:
        """Start from the weights of the stage before, dead rows left out."""
        old, survivors = before.module.parser.scorer.table, before.survivors()
        table = module.parser.scorer.table
        table.copy_(old[survivors[TABLE].view(-1)] if TABLE in survivors and len(old) != len(table) else old)

    def alive(self, outcome: Outcome) -> bool:
        return all(bool(mask.any()) for mask in outcome.survivors().values())

    def sparsity(self, data: ParsingData, first: Outcome, last: Outcome) -> dict[str, object]:
        return parsing_report.sparsity(data, first, last)

    def write_report(
        self, folder: Path, data: ParsingData, outcomes: Sequence[Outcome], last: Outcome
    ) -> report.Table | None:
        return parsing_report.write_report(folder, data, outcomes, last)

    def settled(self, outcome: Outcome) -> Outcome:
        """Relations are learnt once the parser is, from gold arcs."""
        data = outcome.data
        if data.label_templates and outcome.module.labelling is None:
            outcome.module.labelling = Labelling.learnt(data.splits.parts, data.label_templates, data.min_count)
        return outcome

    def export(self, folder: Path, outcome: Outcome, console: Console) -> int | None:
        module, data = outcome.module, outcome.data
        if (reason := artifact.unfit(module.parser)) is not None:
            console.print(f"no artifact: {reason}")
            return None
        relations = None if module.labelling is None else module.labelling.model
        return artifact.save(folder, DependencyParser(data.index, module.parser, relations, data.splits.rule))


def _parser(stage: Stage, data: ParsingData) -> Parser:
    return Parser(stage.scorer(data.sizes), data.projective, data.single_root)
