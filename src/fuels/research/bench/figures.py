"""The results of a race: medians with their spread, as tables and as JSON.

Speedups are computed turn by turn, from times a few seconds apart; the tables show their median.
The spread is the lowest and the highest turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from fuels.report.tables import Column, Table, columns
from fuels.research.bench.measure import EAGER, FLOOR, FLOWER, JSD, OURS, PFL, Race
from fuels.research.bench.work import METHODS, PERIOD

TITLES = {"fuels": "FUELS", "fedavg": "FedAvg"}
NAMES = {
    OURS: "ours",
    EAGER: "eager PyTorch, client after client",
    FLOWER: "Flower's simulation on Ray",
    PFL: "Apple's pfl",
    FLOOR: "floor: the matrix products alone",
}
RIVALS = (EAGER, FLOWER, PFL)


def to_json(race: Race, machine: dict[str, Any]) -> dict[str, Any]:
    """Everything, for scripts."""
    jsd = _ratio(race, (JSD, "scipy"), (JSD, OURS))
    return {
        "machine": machine,
        "threads": race.threads,
        "turns": len(race.turns),
        "seconds": round(race.seconds, 1),
        "work": {**asdict(race.sizes), "batches": race.sizes.batches, "rows": PERIOD},
        "eager_threads": race.eager_threads,
        **{method: _method_json(race, method) for method in METHODS},
        "jsd_speedup_vs_scipy": _median(jsd),
        "jsd": {
            "us_per_pair": {who: _summary(race.series((JSD, who))) for who in (OURS, "scipy")},
            "spread": _spread(jsd),
        },
        "skipped": race.skipped,
    }


def _method_json(race: Race, method: str) -> dict[str, Any]:
    ratios = {f"speedup_vs_{who}": _ratio(race, (method, who), (method, OURS)) for who in RIVALS}
    ratios["times_floor"] = _ratio(race, (method, OURS), (method, FLOOR))
    times = {}
    for who in NAMES:
        if (summary := _summary(race.series((method, who)))) is not None:
            clients = race.clients.get(who)
            scaled = clients is not None and clients < race.sizes.clients
            times[who] = {**summary, "clients": clients, "scaled": scaled}
    return {
        **{name: _median(values) for name, values in ratios.items()},
        "spread": {name: _spread(values) for name, values in ratios.items()},
        "ms_per_client_epoch": times,
        "difference_from_ours": {
            who: gap for (of, who), gap in race.difference.items() if of == method
        },
    }


def tables(race: Race) -> list[Table]:
    """For people: one table per method, and one for the divergence."""
    shown = [_method_table(race, method) for method in METHODS]
    ours, scipy = race.series((JSD, OURS)), race.series((JSD, "scipy"))
    if ours and scipy:
        sizes, times = race.sizes, _times(_ratio(race, (JSD, "scipy"), (JSD, OURS)))
        rows = [
            ["ours", f"all pairs of {sizes.members}", *_cells(ours), "", ""],
            ["scipy, pair by pair", f"{sizes.pairs} pairs, scaled", *_cells(scipy), *times],
        ]
        title = f"Jensen-Shannon divergence of prototypes of {PERIOD} x {2 * sizes.hidden}"
        shown.append(Table(columns=_columns("us per pair"), rows=rows, title=title))
    return shown


def notes(race: Race) -> list[str]:
    """What else a reader of the tables should know."""
    found = []
    for method in METHODS:
        if ratio := _ratio(race, (method, OURS), (method, FLOOR)):
            times = f"{median(ratio):.3g} times the floor ({_range(ratio)})"
            found.append(f"{TITLES[method]}: ours takes {times}")
    found += [f"{NAMES.get(who, who)}: {reason}" for who, reason in race.skipped.items()]
    if race.eager_threads and race.threads > 1:
        found.append(
            f"eager PyTorch may use {race.threads} threads and ran with {race.eager_threads},"
            " which was the fastest"
        )
    if race.difference:
        worst = max(race.difference.values())
        found.append(f"after one round the rivals' results differ from ours by at most {worst:.1e}")
    return found


def _method_table(race: Race, method: str) -> Table:
    sizes, rows = race.sizes, []
    for who, name in NAMES.items():
        if not (series := race.series((method, who))):
            continue
        clients = race.clients.get(who)
        scaled = "" if clients == sizes.clients else ", scaled"
        measured = "" if clients is None else f"{clients} clients{scaled}"
        times = ("", "") if who == OURS else _times(_ratio(race, (method, who), (method, OURS)))
        rows.append([name, measured, *_cells(series), *times])
    title = (
        f"{TITLES[method]}: local epochs of {sizes.batches} batches of {PERIOD}, hidden"
        f" {sizes.hidden}; threads: {race.threads}, turns: {len(race.turns)}"
    )
    return Table(columns=_columns("ms per client"), rows=rows, title=title)


def _columns(unit: str) -> list[Column]:
    return columns(f"who | measured on | median ({unit}) | spread ({unit}) | times ours | spread")


def _cells(series: Sequence[float]) -> list[str]:
    return [f"{median(series):.3g}", _range(series)]


def _times(ratio: Sequence[float]) -> list[str]:
    return _cells(ratio) if ratio else ["", ""]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"


# -- numbers -----------------------------------------------------------------------------------


def _ratio(race: Race, above: tuple[str, str], below: tuple[str, str]) -> list[float]:
    """One series by another, turn by turn; empty without one of them."""
    return [a / b for a, b in zip(race.series(above), race.series(below), strict=False)]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _spread(values: Sequence[float]) -> list[float] | None:
    return [min(values), max(values)] if values else None


def _summary(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": median(values), "low": min(values), "high": max(values)}
