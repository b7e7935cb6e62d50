"""The period of a panel, found by autocorrelation.

Every client is detrended and scaled, its autocorrelation computed over the values present, and the
curves are averaged over clients. The period is the smallest lag with a clear peak that is not
merely a fraction of a better one: traffic with two rush hours also repeats a little after half a
day, and weeks mostly repeat a little better than days.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuels.arrays import Floats
from fuels.data.panel import Panel

_MOST_CLIENTS = 256  # evenly spaced: more would hardly change the mean curve
_CLEAR = 0.1  # a peak must be this high, and this much above the lowest point before it
_NEARLY_BEST = 0.6  # of the best peak
_BETTER_TWICE = 1.3  # a peak is a fraction of the period if its double is this much better
_CLOCK = {"hour": 3600, "day": 86400, "week": 7 * 86400}  # seconds


@dataclass(frozen=True)
class Cycle:
    """A period in steps and the mean autocorrelation at that lag."""

    period: int
    correlation: float


def clock_lags(panel: Panel) -> dict[str, int]:
    """An hour, a day and a week in steps: those that are whole and fit into the panel twice."""
    step = panel.step_seconds
    return {
        word: seconds // step
        for word, seconds in _CLOCK.items()
        if seconds % step == 0 and 1 < seconds // step <= panel.length // 2
    }


def find_cycle(panel: Panel) -> Cycle | None:
    """The period of the panel, or None if nothing clearly repeats."""
    curve = autocorrelation(panel.values, panel.length // 2)
    clock = sorted(clock_lags(panel).values())
    candidates = {_snap(lag, clock) for lag in _peaks(curve)}
    peaks = {
        lag: float(curve[lag])
        for lag in candidates
        if curve[lag] >= _CLEAR and curve[lag] - curve[:lag].min() >= _CLEAR
    }
    if not peaks:
        return None
    best = max(peaks.values())
    for lag in sorted(peaks):
        twice = curve[2 * lag] if 2 * lag < len(curve) else -1.0
        if peaks[lag] >= _NEARLY_BEST * best and twice <= _BETTER_TWICE * peaks[lag]:
            return Cycle(lag, peaks[lag])
    lag = max(peaks, key=lambda peak: peaks[peak])
    return Cycle(lag, peaks[lag])


def autocorrelation(values: Floats, lags: int) -> Floats:
    """Mean autocorrelation of values [time, client] at lags 0..lags-1, over present values."""
    columns = np.unique(np.linspace(0, values.shape[1] - 1, _MOST_CLIENTS).astype(np.int64))
    chosen = values[:, columns]
    curves = [c for x in chosen.T if (c := _autocorrelation_of_one(x, lags)) is not None]
    return np.mean(curves, axis=0) if curves else np.zeros(lags)


def _autocorrelation_of_one(series: Floats, lags: int) -> Floats | None:
    present = ~np.isnan(series)
    if present.sum() < 4:
        return None
    step = np.arange(len(series), dtype=np.float64)
    slope, level = np.polyfit(step[present], series[present], 1)
    x = np.where(present, series - slope * step - level, 0.0)
    # Clip: a few huge events would dominate the curve.
    spread = x[present].std()
    if spread <= 1e-12 * max(1.0, float(np.abs(series[present]).max())):
        return None
    x = np.clip(x, -4 * spread, 4 * spread)
    size = 1 << (2 * len(x) - 1).bit_length()
    power = np.fft.irfft(np.abs(np.fft.rfft(x, size)) ** 2)[:lags]
    pairs = np.fft.irfft(np.abs(np.fft.rfft(present.astype(np.float64), size)) ** 2)[:lags]
    covariance = np.where(pairs > 0.5, power / np.maximum(pairs, 1.0), 0.0)
    return np.asarray(covariance / covariance[0])


def _peaks(curve: Floats) -> list[int]:
    """Lags that are the maximum within a fifth of themselves, so that ripples do not count."""
    found = []
    for lag in range(2, len(curve) - 1):
        reach = max(1, lag // 5)
        around = curve[lag - reach : lag + reach + 1]
        if curve[lag] == around.max() and curve[lag] > curve[lag - reach]:
            found.append(lag)
    return found


def _snap(lag: int, clock: list[int]) -> int:
    """A lag within 3 % of an hour, a day or a week becomes exactly that."""
    return next((c for c in clock if abs(lag - c) <= 0.03 * c), lag)
