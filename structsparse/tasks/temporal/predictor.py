"""Predictor of drift models: forecasts for new texts with the weights of the last period, and trends of features."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.dated import LEVEL
from structsparse.corpora.documents import TOKENS, DocumentReading

if TYPE_CHECKING:
    from structsparse.tasks.temporal.data import DriftData

BAND = 1.96  # standard deviations to each side of a band, which covers 95 % of a normal density
Row = str | Mapping[str, object]  # a text, or the columns of a row with the text among them


class TrendPoint(NamedTuple):
    """The weight of a feature in a period, and the band around it."""

    period: str
    weight: float
    low: float
    high: float


class Forecast(NamedTuple):
    """A forecast for the period after the last: the expected number or the probability of a class, and a band."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class DriftPredictor:
    """Trained drift model: the trajectories of living features, and how texts become features."""

    periods: tuple[str, ...]  # names of the periods that the model was trained on
    names: tuple[str, ...]  # of the living features
    is_word: np.ndarray  # bool [features]; for counts, all are words, perhaps under an effect
    drifting: np.ndarray  # bool [features]; the others are constant
    table: np.ndarray  # float32 [periods, features]
    deviations: np.ndarray  # float32 [periods, features], posterior standard deviations
    factors: np.ndarray  # float32 [features], of the values of words
    centre: np.ndarray  # float32 [features], taken from the values
    bias: float
    noise: float
    loss: str
    weighting: str
    reading: DocumentReading
    columns: Mapping[str, str]  # names of the columns `text` and `response` of tables
    classes: tuple[str, ...] | None = None
    words: tuple[str, ...] = ()  # for counts: the vocabulary
    background: np.ndarray | None = None  # float32 [words], log frequencies

    @classmethod
    def of(
        cls, data: DriftData, table: np.ndarray, deviations: np.ndarray, bias: float, noise: float, loss: str
    ) -> DriftPredictor:
        """Drift model: make the predictor of living features from the weights of a trained model."""
        items, corpus, bag = data.of_items, data.corpus, data.bag
        living = np.flatnonzero((table != 0).any(axis=0))
        plain = 0 if bag is None else len(bag.layout)
        numbers = (np.arange(table.shape[1]) if data.columns is None else data.columns)[living]
        counted = data.metric == "nll"
        is_word = np.ones(len(living), bool) if counted else numbers < plain
        factors = np.ones(len(living), np.float32)
        if bag is not None and not counted:
            factors[is_word] = bag.weighting.factors[numbers[is_word]]
        table = table[:, living].astype(np.float32)
        return cls(
            periods=corpus.periods[: data.periods],
            names=tuple(items.names[k] for k in living.tolist()),
            is_word=is_word,
            drifting=(table != table[0]).any(axis=0),
            table=table,
            deviations=deviations[:, living].astype(np.float32),
            factors=factors,
            centre=np.zeros(len(living), np.float32) if counted else items.centre[living].astype(np.float32),
            bias=bias,
            noise=noise,
            loss=loss,
            weighting="counts" if bag is None else bag.weighting.kind,
            reading=corpus.reading,
            columns=dict(corpus.columns),
            classes=items.classes,
            words=items.words if counted else (),
            background=items.background.astype(np.float32) if counted else None,
        )

    def __repr__(self) -> str:
        """Drift model: one line with the numbers of periods and features."""
        drifting = int(self.drifting.sum())
        return f"DriftPredictor({len(self.periods)} periods, {len(self.names):,} features, {drifting:,} drifting)"

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Drift model: the number of each living feature."""
        return {name: k for k, name in enumerate(self.names)}

    def trend(self, name: str) -> list[TrendPoint]:
        """Drift model: the weight of a feature in each period, with 95 % bands."""
        number = self.numbers.get(name, self.numbers.get(name.lower()))
        if number is None:
            near = difflib.get_close_matches(name.lower(), self.names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{name!r} is dead or unknown: it has no weights in this model{hint}")
        weights, spread = self.table[:, number].tolist(), (BAND * self.deviations[:, number]).tolist()
        points = zip(self.periods, weights, spread, strict=True)
        return [TrendPoint(period, w, w - band, w + band) for period, w, band in points]

    def most_drifting(self, first: str | None = None, last: str | None = None, count: int = 10) -> list[str]:
        """Drift model: the features whose weights differ most between two periods, in units of their deviations."""
        begin, end = self._period(first, 0), self._period(last, len(self.periods) - 1)
        change = np.abs(self.table[end] - self.table[begin])
        size = change / np.maximum(np.hypot(self.deviations[begin], self.deviations[end]), 1e-12)
        order = np.argsort(-np.where(self.drifting, size, -1), kind="stable")[:count]
        return [self.names[k] for k in order.tolist() if self.drifting[k]]

    def _period(self, name: str | None, default: int) -> int:
        """Drift model: the number of a period."""
        if name is None:
            return default
        if name not in self.periods:
            raise UserError(
                f"{name!r} is no period of this model, expected one of {self.periods[0]} to {self.periods[-1]}"
            )
        return self.periods.index(name)

    # --- forecasts

    def values(self, rows: Sequence[Row]) -> np.ndarray:
        """Drift model: the values of the living features of rows, float64 [rows, features]."""
        result = np.zeros((len(rows), len(self.names)))
        words = {name: k for k, name in enumerate(self.names) if self.is_word[k]}
        others = [(name, k) for k, name in enumerate(self.names) if not self.is_word[k]]
        for n, row in enumerate(rows):
            text = row if isinstance(row, str) else str(row.get(self.columns["text"], ""))
            for word, count in self._counted(text).items():
                if word in words:
                    k = words[word]
                    result[n, k] = weighted(self.weighting, count) * self.factors[k]
            for name, k in others:
                result[n, k] = 1.0 if name == LEVEL else column_value(row, name)
        return result

    def _counted(self, text: str) -> Counter:
        """Drift model: how often each word occurs in a text."""
        text = text.lower() if self.reading.lower else text
        return Counter(TOKENS[self.reading.tokens].findall(text))

    def scores(self, rows: Sequence[Row], period: str | None = None) -> np.ndarray:
        """Drift model: the scores of rows with the weights of a period, by default the last one."""
        weights = self.table[self._period(period, len(self.periods) - 1)].astype(np.float64)
        return (self.values(rows) - self.centre) @ weights + self.bias

    def forecast(self, rows: Sequence[Row]) -> list[Forecast]:
        """Drift model: forecasts for the period after the last, by the weights of the last.

        For numbers, a band has the noise and the deviations of the weights. For classes, it has the latter alone."""
        if self.words:
            raise UserError("this model has word counts and no response: see word_probabilities() and trend(word)")
        values = self.values(rows) - self.centre
        scores = values @ self.table[-1].astype(np.float64) + self.bias
        variance = values**2 @ self.deviations[-1].astype(np.float64) ** 2
        if self.classes is not None:
            spread = BAND * np.sqrt(variance)
            return [
                Forecast(*(_probability(s + part) for part in (0, -d, d))) for s, d in zip(scores, spread, strict=True)
            ]
        spread = BAND * np.sqrt(variance + self.noise)
        return [Forecast(float(s), float(s - d), float(s + d)) for s, d in zip(scores, spread, strict=True)]

    def word_probabilities(self) -> dict[str, float]:
        """Drift model of word counts: the forecast probability of each word of the vocabulary, without effects."""
        if not self.words:
            raise UserError("this model forecasts a response, not words: see forecast(rows)")
        logs, code = self.background.astype(np.float64), {word: k for k, word in enumerate(self.words)}
        logs = logs.copy()
        for k, name in enumerate(self.names):
            if name in code:
                logs[code[name]] += self.table[-1, k]
        shares = np.exp(logs - logs.max())
        return dict(zip(self.words, (shares / shares.sum()).tolist(), strict=True))

    def predict(self, rows: Sequence[Row]) -> list[float] | list[str]:
        """Drift model: the number or the class of each row, as a text or a mapping of columns."""
        values = [forecast.value for forecast in self.forecast([rows] if isinstance(rows, str) else rows)]
        return values if self.classes is None else [self.classes[value > 0.5] for value in values]

    def nbest(self, rows: Sequence[Row], count: int = 10) -> NoReturn:
        """Drift model: raise an error, because forecasts are numbers or one of two classes."""
        raise UserError("drift models forecast one number or one of two classes; take forecast(rows)")

    def marginals(self, rows: Sequence[Row]) -> list[dict[str, float]]:
        """Drift model: the probability of each class for each row."""
        if self.classes is None:
            raise UserError("this model predicts numbers; forecast(rows) tells bands around them")
        return [dict(zip(self.classes, (1 - f.value, f.value), strict=True)) for f in self.forecast(rows)]

    def evaluate(self, file: str | Path) -> dict[str, float]:
        """Drift model: the squared error or the accuracy of forecasts for a table with texts and responses."""
        from structsparse.corpora.document_files import table_rows

        rows = [row for _, row in table_rows(Path(file))]
        name = self.columns["response"]
        missing = next((k for k, row in enumerate(rows) if row.get(name) is None), None)
        if missing is not None or not rows:
            raise UserError(f"{file}: has no column {name!r} in row {(missing or 0) + 1}, the response to compare with")
        found = self.predict(rows)
        if self.classes is not None:
            right = sum(a == row[name] for a, row in zip(found, rows, strict=True))
            return {"accuracy": right / len(rows), "items": len(rows)}
        gold = np.array([number(row[name], f"{file}: {name}") for row in rows])
        return {"mse": float(np.square(np.array(found) - gold).mean()), "items": len(rows)}


def weighted(kind: str, count: int) -> float:
    """Drift model: the value of a word that occurs `count` times."""
    return {"counts": float(count), "binary": 1.0, "log": math.log1p(count)}[kind]


def column_value(row: Row, name: str) -> float:
    """Drift model: the value of the feature `column` or `column=value` in a row; values may be several, after `;`."""
    column, equals, value = name.partition("=")
    if isinstance(row, str) or column not in row:
        raise UserError(f"a row has no column {column!r}; expected all columns that the model was trained with")
    if not equals:
        return number(row[column], column)
    return float(value in [part.strip() for part in str(row[column]).split(";")])


def number(cell: object, where: str) -> float:
    """Drift model: a cell as a finite number."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where} is {cell!r}, expected a number")
    return value


def _probability(score: float) -> float:
    """Drift model: the probability of the second class at a score."""
    return float(1 / (1 + np.exp(-score)))
