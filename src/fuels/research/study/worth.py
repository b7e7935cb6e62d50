"""What federation is worth: a row of a table against nothing shared, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from fuels.arrays import Floats
from fuels.evaluation.outcome import method_rows
from fuels.evaluation.summary import paired_test
from fuels.report.style import number

if TYPE_CHECKING:
    from fuels.research.study.compare import Comparison, Row

ALONE = "solo"  # the method whose clients share nothing
T = TypeVar("T")


def worth(comparison: Comparison) -> list[str]:
    """FUELS, and the method with the lowest MSE, against nothing shared."""
    senders = [row for row in comparison.ranking if row.records[0].method != ALONE]
    if not senders:
        return []
    base = nothing_shared(comparison)
    if base is None:
        return [
            "The table does not say what federation is worth: it has no row in which nothing is"
            " shared, such as that of Solo."
        ]
    shown = {row.name: row for row in senders[:1] + [r for r in senders if r.name == "FUELS"]}
    return [against(row, base) for row in shown.values()]


def nothing_shared(comparison: Comparison) -> Row | None:
    """Solo; without the shared experts where the runs have them."""
    found = [row for row in comparison.methods if row.records[0].method == ALONE]
    rows = found or comparison.methods
    row = rows[0]
    forecast = method_rows(row.records[0].title)[2]
    if all(forecast in record.mse for record in row.records):
        return replace(row, name=forecast, forecast=forecast)
    sharing = row.records[0].settings.get("sharing", {})
    sums = sharing.get("statistics") or sharing.get("live_mean")
    return found[0] if found and not sums else None


def against(row: Row, base: Row) -> str:
    """Gain in MSE, share of clients that improve, and paired tests over clients and days."""
    change = 100 * (row.mean() / base.mean() - 1)
    tests = [_test(matched(row.errors(), base.errors()), "client")]
    if row.daily() and base.daily():
        tests.append(_test(matched(row.daily(), base.daily()), "day"))
    name = base.name if "nothing shared" in base.name else f"{base.name} (nothing shared)"
    return (
        f"What federation is worth: the MSE of {row.name} is {abs(change):.1f} %"
        f" {'lower' if change < 0 else 'higher'} than that of {name}, and lower for"
        f" {row.improves(base):.0f} % of the clients; paired Wilcoxon tests: {' and '.join(tests)}."
    )


def matched(one: Mapping[tuple[int, T], float], other: Mapping[tuple[int, T], float]) -> Floats:
    """What both have by (seed, unit), mean over the seeds of each unit, [row, unit]."""
    pairs: dict[T, list[tuple[float, float]]] = {}
    for key in one:
        if key in other:
            pairs.setdefault(key[1], []).append((one[key], other[key]))
    return np.array([np.mean(each, axis=0) for each in pairs.values()]).reshape(-1, 2).T


def _test(rows: Floats, unit: str) -> str:
    """A test over clients or days, each with its mean over the seeds."""
    p, count = paired_test(rows), rows.shape[1]
    said = "no difference" if p is None else f"p = {number(p, 2)}"
    return f"{said} over {count} {unit}{'s' * (count != 1)}"
