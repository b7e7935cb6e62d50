"""What the service answers: forecasts and health as JSON, metrics as text."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from fuels.data.clock import zone_info
from fuels.errors import FuelsError
from fuels.experts.personal_model import Forecast
from fuels.report.prometheus import Metrics
from fuels.serving.live import LiveRun


class Step(BaseModel):
    """The forecast of one step."""

    time: str
    forecast: float | None = Field(description="null if the values that it needs are missing")
    intervals: dict[str, tuple[float | None, float | None]] = Field(
        description="lower and upper bound, by level in percent"
    )


class ClientForecast(BaseModel):
    client: str
    steps: list[Step]


class Forecasts(BaseModel):
    """The newest forecasts."""

    newest_value: str = Field(description="time of the last step with a value; forecasts follow it")
    issued: str = Field(description="when they were made, UTC")
    step_seconds: int
    unit: str
    problem: str = Field(description="why there are no newer ones; empty if nothing is wrong")
    forecasts: list[ClientForecast]


class Health(BaseModel):
    status: str = Field(description="ok or failing")
    newest_value: str | None
    problem: str = Field(description="why there is no newer forecast; empty if nothing is wrong")


class Problem(BaseModel):
    """Why a request was refused or failed, in one sentence."""

    error: str


class MissingError(FuelsError):
    """What was asked for does not exist."""


def forecasts(
    live: LiveRun,
    client: str | None = None,
    horizon: int | None = None,
    levels: Sequence[float] | None = None,
) -> bytes:
    """The newest forecasts of all clients or of one, as JSON."""
    made = live.latest
    if made is None:
        raise MissingError(live.problem or "there is no forecast yet")
    steps = len(made.times) if horizon is None else horizon
    if not 1 <= steps <= len(made.times):
        raise FuelsError(
            f"horizon {horizon} is not served: choose 1 to {len(made.times)}, or start fuels serve"
            " with a longer --horizon"
        )
    known = {level: i for i, level in enumerate(made.levels)}
    wanted = list(made.levels) if levels is None else list(levels)
    if strange := [level for level in wanted if level not in known]:
        has = ", ".join(f"{level:g}" for level in made.levels) or "none"
        raise FuelsError(f"level {strange[0]:g} is not served: the run has {has}")
    if client is not None and client not in made.ids:
        raise MissingError(
            f"no forecast for client {client}: the run has {len(made.ids)} clients, e.g."
            f" {', '.join(made.ids[:3])}"
        )
    rows = range(len(made.ids)) if client is None else [made.ids.index(client)]
    times = [moment(at, made.timezone) for at in made.times[:steps]]
    found = {
        "newest_value": moment(newest(live, made), made.timezone),
        "issued": datetime.fromtimestamp(live.issued, UTC).isoformat(timespec="seconds"),
        "step_seconds": live.models.step_seconds,
        "unit": live.models.unit,
        "problem": live.problem,
        "forecasts": [
            {
                "client": made.ids[row],
                "steps": [
                    {
                        "time": times[h],
                        "forecast": plain(made.values[row, h]),
                        "intervals": {
                            f"{level:g}": bounds(made, known[level], row, h) for level in wanted
                        },
                    }
                    for h in range(steps)
                ],
            }
            for row in rows
        ],
    }
    return json.dumps(found, allow_nan=False).encode()


def bounds(made: Forecast, level: int, row: int, step: int) -> list[float | None]:
    return [plain(made.lower[level, row, step]), plain(made.upper[level, row, step])]


def newest(live: LiveRun, made: Forecast) -> np.datetime64:
    return np.datetime64(made.times[0] - np.timedelta64(live.models.step_seconds, "s"))


def moment(at: np.datetime64, zone: str | None) -> str:
    """A time in ISO 8601, with its offset where the zone is known."""
    naive: datetime = at.astype("datetime64[s]").astype(datetime)
    if zone is None:
        return naive.isoformat()
    return naive.replace(tzinfo=UTC).astimezone(zone_info(zone)).isoformat()


def plain(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return float(value) if math.isfinite(value) else None


def health(live: LiveRun) -> Health:
    made = live.latest
    at = None if made is None else moment(newest(live, made), made.timezone)
    problem = live.problem or ("" if made is not None else "there is no forecast yet")
    return Health(status="failing" if problem else "ok", newest_value=at, problem=problem)


def metrics(live: LiveRun) -> str:
    """For Prometheus; no client is named."""
    m, counts, made = Metrics(), live.counts, live.latest
    m.gauge("serve_healthy", "Whether the newest forecast knows all values.", not live.problem)
    m.counter("serve_posts_total", "Posts of values that were accepted.", counts.posts)
    m.counter("serve_posts_refused_total", "Posts of values that were refused.", counts.refused)
    m.counter("serve_values_total", "Values that were accepted.", counts.values)
    m.counter("serve_forecasts_total", "Forecasts that were made.", counts.forecasts)
    m.gauge("serve_forecast_seconds", "Duration of the last forecast.", counts.seconds)
    m.gauge("serve_forecast_age_seconds", "Time since the last forecast.",
            None if made is None else time.time() - live.issued)  # fmt: skip
    if made is not None:
        m.gauge("serve_clients", "Clients with a forecast.", len(made.ids))
        m.gauge("serve_clients_without_forecast", "Clients whose values are missing.",
                len(made.missing))  # fmt: skip
        if made.timezone is not None:  # otherwise the moment is unknown
            at = newest(live, made).astype("datetime64[s]").astype(np.int64)
            m.gauge("serve_newest_value_timestamp_seconds", "Time of the newest value.", int(at))
    if (found := live.monitored()) is not None:
        _monitored(m, found)
    return m.text()


def _monitored(m: Metrics, found: dict[str, Any]) -> None:
    """What `fuels monitor` says, as far as there are values to compare with."""
    spans = {name: one for name, one in found["windows"].items() if name != "test part"}
    ratios = {name: one.get("errors_of_test", {}).get("ratio") for name, one in spans.items()}
    m.add("error_ratio", "gauge", "Errors one step ahead, in times of those of the test part.",
          [({"span": n}, value) for n, value in ratios.items() if value is not None])  # fmt: skip
    m.add("coverage", "gauge", "Share of the values inside the intervals.",
          [({"span": n, "level": level}, share) for n, one in spans.items()
           for level, share in one["coverage"].items() if share is not None])  # fmt: skip
    m.add("drift", "gauge", "Whether all clients together have drifted.",
          [({"what": n}, one["together"] is not None)
           for n, one in found["drift"].items()])  # fmt: skip
    m.add("drift_clients", "gauge", "Clients that have drifted.",
          [({"what": n}, len(one["clients"])) for n, one in found["drift"].items()])  # fmt: skip
    m.gauge("retrain_advised", "Whether training again is advised, now or soon.",
            found["retrain"]["advice"] in ("yes", "soon"))  # fmt: skip
