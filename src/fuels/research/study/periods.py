"""Errors by period of the test part: what a record keeps, and records of only some test periods.

A run with a long test part can so be compared on several stretches of it, such as ordinary days and
holidays. A record keeps the errors of the method; those of the references are computed from the
data again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.references import references
from fuels.research.study.record import Floats, Record, by_period


def stretches(lengths: Sequence[int], record: Record) -> list[tuple[int, int]]:
    """Consecutive test periods, (first, last + 1) each, as long as `lengths` says."""
    ends = np.cumsum(lengths).tolist()
    available = record.data["periods"][2]
    if not lengths or min(lengths) < 1 or ends[-1] > available:
        raise FuelsError(
            f"--divide-test {','.join(map(str, lengths))}: takes lengths of at least 1 period, at"
            f" most {available} in all, which is the length of the test part"
        )
    return list(zip([0, *ends[:-1]], ends, strict=True))


def restricted(record: Record, dataset: Dataset, first: int, end: int) -> Record:
    """The record with the errors of test periods `first` to `end` - 1, counted from 0."""
    kept = record.by_period
    if not kept:
        raise FuelsError(f"{record.name}: the record has no errors by period; train the run again")
    targets = kept["targets"][:, first:end]
    found = {
        measure: {record.title: _mean(kept[measure][:, first:end], targets)}
        for measure in ("mse", "mae")
    }
    for name, forecast in references(dataset, "test").items():
        again = by_period(dataset, forecast)
        for measure, rows in found.items():
            rows[name] = _mean(again[measure][:, first:end], again["targets"][:, first:end])
    return replace(record, **found, data={**record.data, "test_periods": [first + 1, end]})


def _mean(errors: Floats, targets: Floats) -> Floats:
    """Mean errors of each client over periods, [client]: every target counts alike."""
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(targets > 0, errors * targets, 0).sum(axis=1) / targets.sum(axis=1)
    return mean
