"""What monitoring says about a run: figures, flags, and whether to train again, with the evidence.

Errors and coverage of the last day and week are compared with the test part of the run. Days differ
from each other, so the uncertainty of a mean comes from the spread of the means of the test part's
days: of k days, it is within t x spread x sqrt(1 / k) of the expected value with 99 % confidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from fuels.arrays import Floats
from fuels.data.means import mean, ratio
from fuels.data.merging import listed
from fuels.evaluation.accuracy import accuracy, naive_scales, overall
from fuels.monitoring.drift import ERRORS, VALUES, Alarm, Watched, watch
from fuels.monitoring.track import Part, Track

CONFIDENCE = 0.99
WORSE = 1.1  # times the error of the test part: less is no reason to train again
LEADS = 4  # steps ahead whose errors are listed
ENOUGH_DAYS = 7  # of values since a change before training again pays
Found = dict[str, Any]


def monitor(path: Path) -> Found:
    """Compare the past forecasts of a run with what happened; ready for JSON."""
    track = Track.read(path)
    live, test = track.live, track.test
    watched = watch_errors(track), watch_values(track)
    spans = {"last day": live.last(track.day), "last week": live.last(7 * track.day)}
    windows = {name: window(track, part) for name, part in spans.items()}
    if test is not None:
        windows["test part"] = window(track, test)
        uncertain(windows, spans, test, watched[0], track)
    found: Found = {
        "run": str(path),
        "title": track.title,
        "unit": track.known.unit,
        "clients": len(track.models.ids),
        "step_seconds": track.models.step_seconds,
        "timezone": track.known.timezone,
        "forecasts": {
            "origins": len(track.issued.cutoffs),
            "horizon": track.issued.horizon,
            "first": track.moment(track.issued.cutoffs[0] + track.issued.step),
            "newest_value": track.moment(track.known.times[-1]),
            "steps": len(live.times),
            "steps_forecast": int((~np.isnan(live.bounds[0])).any(axis=0).sum()),
        },
        "windows": windows,
        "steps_ahead": steps_ahead(track),
        "drift": {one.kind.name: described(track, one) for one in watched if one is not None},
        "by_day": by_day(track, watched),
        "by_client": by_client(track, watched),
    }
    found["flags"] = flags(found, track)
    found["retrain"] = advice(found, track, watched)
    return found


# -- figures -----------------------------------------------------------------------------------


def window(track: Track, part: Part) -> Found:
    """Errors of the forecasts and of naive ones on the same steps, means over the clients."""
    table, models = long_table(track, part), [track.title, *part.references]
    mean_errors = overall(accuracy(table, models, scales(track))).to_dicts()
    errors = {row.pop("model"): row for row in mean_errors}
    own = errors.get(track.title, {})
    ends = [track.moment(time) for time in part.times[[0, -1]]] if len(part.times) else [None] * 2
    return {
        "from": ends[0],
        "to": ends[1],
        "values": own.get("values", 0),
        "errors": {n: {k: _number(v) for k, v in row.items()} for n, row in errors.items()},
        "coverage": {level: own.get(f"coverage-{level}") for level in track.levels},
    }


def long_table(track: Track, part: Part) -> pl.DataFrame:
    """One row per client and step with a value and a forecast, in the columns of `accuracy`."""
    counted = np.isnan(part.bounds[0]) | np.isnan(part.actual)
    for values in part.references.values():  # all on the same steps
        counted |= np.isnan(values)
    columns: dict[str, Floats] = {"y": part.actual, track.title: part.bounds[0]}
    columns |= part.references
    names = [f"{track.title}-{end}-{level}" for end in ("lo", "hi") for level in track.levels]
    columns |= dict(zip(names, part.bounds[1:], strict=True))
    ids = np.repeat(np.array(track.models.ids), len(part.times))
    series = [pl.Series("unique_id", ids)]
    series += [pl.Series(name, each.ravel()) for name, each in columns.items()]
    return pl.DataFrame(series).filter(~counted.ravel())


def scales(track: Track) -> Mapping[str, float]:
    """Of MASE: the error of the same time one period ago, over the run's own data."""
    own = track.own
    return {} if own is None else naive_scales(own, own.length, track.models.period)


def uncertain(
    windows: Mapping[str, Found],
    spans: Mapping[str, Part],
    test: Part,
    watched: Watched | None,
    track: Track,
) -> None:
    """Add to the windows how far errors and coverage may differ from the test part by chance."""
    for name, part in spans.items():
        days = len(part.times) / track.models.period
        if watched is not None and days:
            ratio = float(mean(watched.ratios[-len(part.times) :], axis=0))
            low, high = within(ratio, watched.usual_days, days, also_usual=True)
            windows[name]["errors_of_test"] = {"ratio": _number(ratio), "low": low, "high": high}
        for i, level in enumerate(track.levels if days else ()):
            share = windows[name]["coverage"][level]
            if share is not None:
                low, high = within(share, daily_coverage(test, i, track), days)
                about = {"share": share, "low": _clip(low), "high": _clip(high)}
                windows[name].setdefault("coverage_range", {})[level] = about


def within(
    value: float, days: Floats, count: float, also_usual: bool = False
) -> tuple[float | None, float | None]:
    """Bounds around the mean of `count` days, from the spread of other days.

    `also_usual`: the mean of those days is uncertain, too.
    """
    known = days[~np.isnan(days)]
    if len(known) < 3 or math.isnan(value):
        return None, None
    share = 1 / count + (1 / len(known) if also_usual else 0.0)
    far = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    far *= float(known.std(ddof=1)) * math.sqrt(share)
    return value - far, value + far


def daily_coverage(part: Part, level: int, track: Track) -> Floats:
    """The share of the values inside the intervals of a level, by period of the part."""
    levels, period = len(track.levels), track.models.period
    low, high = part.bounds[1 + level], part.bounds[1 + levels + level]
    known = ~np.isnan(part.actual) & ~np.isnan(low)
    inside = known & (part.actual >= low) & (part.actual <= high)
    end = len(part.times) // period * period
    hit, of = (
        each[:, :end].sum(axis=0).reshape(-1, period).sum(axis=1) for each in (inside, known)
    )
    return ratio(hit, of)


def steps_ahead(track: Track) -> list[Found]:
    """Errors over the last week by how far ahead the forecasts were made."""
    horizon, live = track.issued.horizon, track.live
    leads = np.unique(np.linspace(1, horizon, min(LEADS, horizon)).round().astype(int))
    cut, found = slice(-7 * track.day, None), []
    for lead in leads.tolist():
        error = np.abs(track.ahead(lead) - live.actual)[:, cut]
        mae = float(mean(mean(error, axis=1), axis=0))
        values = int((~np.isnan(error)).sum())
        found.append({"steps": lead, "mae": _number(mae), "values": values})
    return found


# -- drift -------------------------------------------------------------------------------------


def watch_errors(track: Track) -> Watched | None:
    """Absolute errors one step ahead, against those of the test part."""
    live, test, std = track.live, track.test, track.models.std[:, None]
    if test is None or not len(live.times):
        return None
    usual = np.abs(test.bounds[0] - test.actual) / std
    now = np.abs(live.bounds[0] - live.actual) / std
    return watch(ERRORS, usual, now, live.phase, track.models.period)


def watch_values(track: Track) -> Watched | None:
    """How much values differ from those of one week before, against the run's own data."""
    changes, std = track.changes(), track.models.std[:, None]
    if changes is None or not len(track.live.times):
        return None
    usual, now = changes
    return watch(VALUES, usual / std, now / std, track.live.phase, track.models.period)


def described(track: Track, watched: Watched) -> Found:
    """The alarms of one kind, with times."""
    ids = track.models.ids
    single = {ids[i]: one for i, one in enumerate(watched.clients) if one is not None}
    return {
        "together": None if watched.together is None else _alarm(track, watched.together),
        "clients": {client: _alarm(track, one) for client, one in single.items()},
        "last_period": _number(float(mean(watched.ratios[-track.models.period :], axis=0))),
        "compared_with": "the test part"
        if watched.kind is ERRORS
        else f"usual changes within one {'week' if track.lag == track.week else 'period'}",
    }


def _alarm(track: Track, one: Alarm) -> Found:
    return {
        "since": track.moment(track.live.times[one.since]),
        "raised": track.moment(track.live.times[one.raised]),
        "ratio": _number(one.ratio),
        "lasts": one.lasts,
    }


def by_day(track: Track, watched: Sequence[Watched | None]) -> list[Found]:
    """The mean ratios to what is usual, by day."""
    times, day = track.live.times, track.day
    found = []
    for first in range(0, len(times), day):
        one: Found = {"from": track.moment(times[first])}
        for each in watched:
            if each is not None:
                part = mean(each.ratios[first : first + day], axis=0)
                one[each.kind.name] = _number(float(part))
        found.append(one)
    return found


def by_client(track: Track, watched: Sequence[Watched | None]) -> list[Found]:
    """Errors of each client over the last week, and how unusual its last period was."""
    week = track.live.last(7 * track.day)
    table = accuracy(long_table(track, week), [track.title], scales(track))
    rows = {row["unique_id"]: row for row in table.to_dicts()}
    found = []
    for i, client in enumerate(track.models.ids):
        row = rows.get(client, {})
        one: Found = {"client": client, "values": row.get("values", 0)}
        one |= {name: _number(row.get(name)) for name in ("mae", "wape")}
        one |= {name: row.get(name) for name in (f"coverage-{level}" for level in track.levels)}
        for each in watched:
            if each is not None:
                one[f"{each.kind.name}_last_period"] = _number(float(each.own[i]))
        found.append(one)
    return found


# -- flags and advice --------------------------------------------------------------------------

WHAT = {
    "errors": "errors have been {ratio} times as large as in the test part",
    "values": "values have differed from those one {lag} before {ratio} times as much as usual",
}


def flags(found: Found, track: Track) -> list[Found]:
    """What a person should look at, each in one sentence."""
    said: list[Found] = []
    lag = "week" if track.lag == track.week else "period"
    for name, drift in found["drift"].items():
        if (one := drift["together"]) is not None:
            text = WHAT[name].format(ratio=_short(one["ratio"]), lag=lag)
            over = "" if one["lasts"] else "; the last period was normal again"
            about = f"{text} since {one['since']} (noticed {one['raised']}){over}"
            said.append({"kind": "drift", "what": name, "text": about})
        if single := drift["clients"]:
            first = min(one["raised"] for one in single.values())
            text = f"{listed(list(single))}: {name} unlike before, first noticed {first}"
            said.append({"kind": "clients", "what": name, "text": text})
    week = found["windows"]["last week"]
    for level, about in week.get("coverage_range", {}).items():
        if about["high"] is not None and about["high"] < float(level) / 100:
            text = (
                f"the {level} % intervals contained {100 * about['share']:.1f} % of the values of"
                f" the last week; by chance, at most {100 * about['high']:.1f} %"
            )
            said.append({"kind": "coverage", "what": level, "text": text})
    counts = found["forecasts"]
    missed = counts["steps"] - counts["steps_forecast"]
    if 0 < missed < counts["steps"] / 2:  # of a job that runs after every step
        none = f"{missed} of {counts['steps']} steps have no forecast one step ahead"
        text = f"{none}: forecast after every step"
        said.append({"kind": "gaps", "what": "forecasts", "text": text})
    return said


def advice(found: Found, track: Track, watched: Sequence[Watched | None]) -> Found:
    """Whether to train again, and why."""
    week, title = found["windows"]["last week"], found["title"]
    evidence: list[str] = []
    errors = watched[0]
    drifted = errors is not None and errors.together is not None and errors.together.lasts
    evidence += [f["text"] for f in found["flags"] if drifted and f["what"] == "errors"][:1]
    changed = (values := watched[1]) is not None and values.together is not None
    for span in ("last day", "last week") if changed else ("last week",):
        ratio = found["windows"][span].get("errors_of_test")
        if ratio is not None and (ratio["low"] or 0) > 1 and ratio["ratio"] > WORSE:
            also = ", and the values have drifted" if span == "last day" else ""
            evidence.append(
                f"the errors of the {span} were {_short(ratio['ratio'])} times those of the test"
                f" part (99 % range {_short(ratio['low'])} to {_short(ratio['high'])}){also}"
            )
    enough = len(track.live.times) >= 7 * track.day
    known = {n: row["mae"] for n, row in week["errors"].items() if row["mae"] is not None}
    best = min(known, key=known.__getitem__, default=title)
    if enough and title in known and known[best] < known[title]:
        evidence.append(
            f"over the last week, the naive forecast '{best}' had a lower MAE"
            f" ({_short(known[best])} instead of {_short(known[title])})"
        )
    if evidence:
        return _when(track, watched, evidence)
    why = ""
    if errors is None:
        why = "the run has no test part of three periods to compare with"
    elif found["forecasts"]["steps_forecast"] < track.day:
        why = "less than a day of forecasts have their values"
    if why:
        return {"advice": "unknown", "text": f"no judgement: {why}", "evidence": [why]}
    last = _short(found["drift"]["errors"]["last_period"])
    evidence = [f"errors of the last period: {last} times those of the test part"]
    if changed:
        evidence.append("values have drifted, but errors have not: the experts follow")
    return {"advice": "no", "text": "no need to train again", "evidence": evidence}


def _when(track: Track, watched: Sequence[Watched | None], evidence: list[str]) -> Found:
    """Train again once there are enough values from after the change."""
    raised = [one.together.since for one in watched if one is not None and one.together is not None]
    wait = ENOUGH_DAYS * track.day - (len(track.live.times) - min(raised)) if raised else 0
    if wait <= 0:
        text = f"train again: fuels retrain {track.folder}"
        return {"advice": "yes", "text": text, "evidence": evidence}
    moment = track.moment(track.known.times[-1] + wait * track.known.step)
    since = f"with {ENOUGH_DAYS} days of values since the change"
    text = f"train again from {moment} on, {since}: fuels retrain {track.folder}"
    return {"advice": "soon", "text": text, "evidence": evidence}


def _number(value: Any) -> Any:
    """A value for JSON, which has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _clip(share: float | None) -> float | None:
    return None if share is None else min(max(share, 0.0), 1.0)


def _short(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"
