"""A description of a panel in figures and a small chart: `fuels data describe`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fuels.data.chart import bar_chart
from fuels.data.clock import format_moment, format_step, zone_name
from fuels.data.codes import missing_codes
from fuels.data.eligibility import find_ineligible
from fuels.data.panel import Panel
from fuels.data.periodicity import autocorrelation, clock_lags, find_cycle
from fuels.data.screening import screen_panel

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
USUAL = 24  # period by which values are screened if none is found
_SHOWN = 10  # clients named on the screen; --json names all


@dataclass(frozen=True)
class Gap:
    """The longest run of missing values between two observed values of a client."""

    client: str
    start: str
    steps: int


@dataclass(frozen=True)
class Description:
    """The result of `describe`; its fields are the keys of the JSON output."""

    name: str
    unit: str
    synthetic: bool
    clients: int
    ids: tuple[str, ...]
    coordinates: bool
    steps: int
    step: str
    first: str
    last: str
    timezone: str | None
    clock: str  # how times are to be understood
    missing_share: float
    zero_share: float
    longest_gap: Gap | None
    late_or_early: int  # clients without values at the start or at the end
    left_out: dict[str, str]  # client: dead or constant, and why
    codes: dict[str, int]  # values that look like a code for missing, and how often they occur
    implausible: tuple[dict[str, Any], ...]  # client, time, value, range of plausible values, ...
    implausible_text: str
    quantiles: dict[str, float]
    period: int | None
    period_text: str
    autocorrelation: dict[str, float]  # at lags of one step, an hour, a day and a week
    profile: tuple[float | None, ...]  # mean over clients and periods at each phase
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def render(self, *, ascii_only: bool = False) -> RenderableType:
        """A table and a chart for the terminal; `ascii_only` avoids block characters."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for label, text in self._rows():
            table.add_row(label, Text(text))
        if self.period is None:
            return table
        chart = bar_chart(self.profile, ascii_only=ascii_only)
        return Group(table, Text(), Text("mean value by phase of the period"), Text(chart))

    def _rows(self) -> list[tuple[str, str]]:
        title = f"{self.name} (synthetic)" if self.synthetic else self.name
        few = ", ".join(self.ids[:3]) + (", ..." if self.clients > 3 else "")
        rows = [
            ("panel", title if self.unit == "value" else f"{title}, in {self.unit}"),
            (
                "clients",
                f"{self.clients} ({few}), coordinates {'un' * (not self.coordinates)}known",
            ),
            ("span", f"{self.first} to {self.last}, {self.steps} steps of {self.step}"),
            ("clock", self.clock),
            ("missing", self._missing_text()),
            ("zeros", f"{self.zero_share:.1%}"),
            *([("codes?", self._codes_text())] if self.codes else []),
            ("implausible", self.implausible_text or "none"),
            ("quantiles", "  ".join(f"{q}={_short(v)}" for q, v in self.quantiles.items())),
            ("period", self.period_text),
        ]
        after = {"step": "one step", "hour": "an hour", "day": "a day", "week": "a week"}
        found = ", ".join(f"{r:.2f} after {after[w]}" for w, r in self.autocorrelation.items())
        rows.append(("autocorrelation", found))
        shown = [f"{client} ({why})" for client, why in self.left_out.items()]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        rows.append(("dead or constant", "; ".join(shown[:_SHOWN]) + more or "none"))
        return rows + [("note", note) for note in self.notes]

    def _codes_text(self) -> str:
        found = ", ".join(
            f"{code} occurs {count} time{'s' * (count != 1)}" for code, count in self.codes.items()
        )
        return (
            f"{found}, outside the range of all other values: if this marks missing values, give"
            f" --missing={','.join(self.codes)}"
        )

    def _missing_text(self) -> str:
        if self.missing_share == 0:
            return "none"
        text = f"{self.missing_share:.2%}"
        if self.longest_gap is not None:
            gap = self.longest_gap
            text += f"; longest gap {gap.steps} steps, client {gap.client} from {gap.start}"
        if self.late_or_early:
            text += f"; clients that start late or end early: {self.late_or_early}"
        return text


def describe(panel: Panel) -> Description:
    """Describe the whole panel; no part of it is treated as training."""
    clock = clock_lags(panel)
    if (usual := clock.get("day")) is None:
        cycle = find_cycle(panel)
        usual = USUAL if cycle is None else cycle.period
    cleaned, screened = screen_panel(panel, usual)
    cycle = find_cycle(cleaned)
    period = None if cycle is None else cycle.period
    present = ~np.isnan(panel.values)
    known = panel.values[present]
    curve = autocorrelation(cleaned.values, panel.length // 2 + 1)
    day = clock.get("day", period or 1)
    reasons = find_ineligible(panel.values, panel.length, day, 1, part="the span")
    first, last = (format_moment(t, panel.timezone) for t in (panel.times[0], panel.times[-1]))
    ends_missing = ~present[0] | ~present[-1]
    return Description(
        name=panel.name,
        unit=panel.unit,
        synthetic=panel.synthetic,
        clients=len(panel.ids),
        ids=panel.ids,
        coordinates=panel.coordinates is not None,
        steps=panel.length,
        step=format_step(panel.step),
        first=first,
        last=last,
        timezone=panel.timezone,
        clock=_clock_text(panel),
        missing_share=float(1 - present.mean()),
        zero_share=float((known == 0).mean()) if known.size else 0.0,
        longest_gap=_longest_gap(panel),
        late_or_early=int(ends_missing.sum()),
        left_out={panel.ids[i]: reason for i, reason in reasons.items()},
        codes={f"{code:.0f}": count for code, count in missing_codes(panel.values).items()},
        implausible=tuple(screened.facts()),
        implausible_text=screened.sentence(),
        quantiles={f"{q:.0%}": float(np.quantile(known, q)) for q in _QUANTILES if known.size},
        period=period,
        period_text=_period_text(panel, period, cycle.correlation if cycle else 0.0),
        autocorrelation={
            word: float(curve[lag])
            for word, lag in {"step": 1, **clock}.items()
            if lag < len(curve)
        },
        profile=() if period is None else _profile(cleaned, period),
        notes=panel.notes,
    )


def _clock_text(panel: Panel) -> str:
    if panel.timezone is None:
        return "time zone not known: clock times as found, assumed to be regular"
    if panel.timezone == "UTC":
        return "UTC"
    if zone_name(panel.timezone) != panel.timezone:
        return f"fixed offset {zone_name(panel.timezone)}"
    hours = panel.standard_offset / np.timedelta64(3600, "s")
    sign, rest = ("-" if hours < 0 else "+"), abs(hours)
    offset = f"UTC{sign}{int(rest):02d}:{round(rest % 1 * 60):02d}"
    return f"wall clock of {panel.timezone}; days are counted in its standard time, {offset}"


def _period_text(panel: Panel, period: int | None, correlation: float) -> str:
    if period is None:
        return "none found"
    length = format_step(period * panel.step)
    return f"{period} steps ({length}), found by autocorrelation ({correlation:.2f})"


def _profile(panel: Panel, period: int) -> tuple[float | None, ...]:
    phases = panel.phases(period)
    means = []
    for phase in range(period):
        values = panel.values[phases == phase]
        known = values[~np.isnan(values)]
        means.append(float(known.mean()) if known.size else None)
    return tuple(means)


def _longest_gap(panel: Panel) -> Gap | None:
    steps, start, column = 0, 0, 0
    for i, series in enumerate(panel.values.T):
        observed = np.flatnonzero(~np.isnan(series))
        between = np.diff(observed) - 1
        if between.size and between.max() > steps:
            at = int(np.argmax(between))
            steps, start, column = int(between[at]), int(observed[at]) + 1, i
    if steps == 0:
        return None
    return Gap(panel.ids[column], format_moment(panel.times[start], panel.timezone), steps)


def _short(number: float) -> str:
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.4g}"
