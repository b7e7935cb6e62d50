"""Comparisons on stretches of the test part: one training, evaluated on several kinds of days.

Records keep the errors of the method by test period. Those of the references are computed again
from the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fuels.arrays import Floats
from fuels.data.means import ratio
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.references import references
from fuels.research.study.compare import Comparison, compare
from fuels.research.study.record import Record, by_period

Lengths = tuple[int, ...]
ByPeriod = Mapping[str, Floats]


def parse_lengths(text: str, place: str) -> Lengths:
    """`11,11` as numbers of periods; `place` names the option in errors."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise FuelsError(
            f"{place} takes comma-separated lengths in periods, such as 11,11; not {text!r}"
        )
    return tuple(map(int, words))


def stretches(lengths: Lengths, dataset: Dataset) -> list[tuple[int, int]]:
    """Consecutive test periods of these lengths, (first, last + 1) each, counted from 0."""
    first, last = dataset.split.part("test")
    available, ends = -(-(last - first) // dataset.period), np.cumsum(lengths).tolist()
    if sum(lengths) > available:
        raise FuelsError(
            f"{dataset.panel.name}: the test part has {available} periods and cannot be divided"
            f" into {' + '.join(map(str, lengths))}"
        )
    return list(zip([0, *ends], ends, strict=False))


def divide(
    runs: Sequence[Sequence[Record]],
    datasets: Sequence[Dataset],
    lengths: Lengths,
    names: Sequence[str] = (),
) -> dict[str, Comparison]:
    """A comparison for each stretch; one inner sequence of runs per row, one dataset per seed."""
    scored = [
        {name: by_period(dataset, each) for name, each in references(dataset, "test").items()}
        for dataset in datasets
    ]
    return {
        f"test periods {first + 1} to {end}": compare(
            [
                [restricted(*pair, first, end) for pair in zip(row, scored, strict=True)]
                for row in runs
            ],
            names,
        )
        for first, end in stretches(lengths, datasets[0])
    }


def restricted(record: Record, others: Mapping[str, ByPeriod], first: int, end: int) -> Record:
    """A record of the test periods `first` to `end` - 1, counted from 0, with these references."""
    if not record.by_period:
        raise FuelsError(f"{record.name}: an early record without errors by period; train it again")
    rows = {record.title: record.by_period, **others}
    mse, mae = (
        {name: _mean(kept, measure, slice(first, end)) for name, kept in rows.items()}
        for measure in ("mse", "mae")
    )
    facts = {**record.data, "test_periods": [first + 1, end]}
    return replace(record, mse=mse, mae=mae, data=facts, by_period={})


def _mean(kept: ByPeriod, measure: str, part: slice) -> Floats:
    """The mean error of each client over some periods, [client]; all targets count alike."""
    errors, targets = kept[measure][:, part], kept["targets"][:, part]
    return ratio(np.where(targets > 0, errors * targets, 0).sum(axis=1), targets.sum(axis=1))
