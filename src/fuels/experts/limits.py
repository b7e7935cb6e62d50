"""The range that forecasts and intervals are confined to, given or detected."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from fuels.arrays import Floats
from fuels.config import Mixture
from fuels.errors import FuelsError
from fuels.experts.personal_model import Forecast

NO_BOUND = "none"


@dataclass(frozen=True)
class Limits:
    """Least and largest possible value, in the data's unit."""

    least: float = -np.inf
    most: float = np.inf
    detected: bool = False  # least is 0 because no training value is negative

    @classmethod
    def of(cls, chosen: Mixture, values: Floats, mean: Floats, std: Floats) -> Limits:
        """As chosen or detected, given the normalised training values [client, time]."""
        found = cls().changed(chosen)
        zero = (0.0 - mean) / std  # as zero was normalised
        if not chosen.at_least and not (values < zero[:, None]).any():
            found = replace(found, least=0.0, detected=True)
        least, most = (found.normalised(mean, std)[:, i, None] for i in (0, 1))
        for outside, what, value in (
            (values < least, "at least", found.least),
            (values > most, "at most", found.most),
        ):
            if outside.any():
                unit = values * std[:, None] + mean[:, None]
                extreme = (np.nanmin if what == "at least" else np.nanmax)(unit)
                raise FuelsError(
                    f"values must be {what} {value:g}, but the training part has {extreme:.6g}:"
                    f" give another bound, or {NO_BOUND}"
                )
        return found

    def changed(self, chosen: Mixture) -> Limits:
        """With the bounds that are given; an empty one stays."""
        made = self
        if chosen.at_least:
            least = _number(chosen.at_least, "mixture.at_least", -np.inf)
            made = replace(made, least=least, detected=False)
        if chosen.at_most:
            made = replace(made, most=_number(chosen.at_most, "mixture.at_most", np.inf))
        if made.least >= made.most:
            raise FuelsError(
                f"mixture.at_least must be below mixture.at_most, but they are {made.least:g} and"
                f" {made.most:g}"
            )
        return made

    def normalised(self, mean: Floats, std: Floats) -> Floats:
        """On the scale of each client, [client, 2]."""
        return np.stack([(self.least - mean) / std, (self.most - mean) / std], axis=1)

    def confined_table(self, table: pl.DataFrame) -> pl.DataFrame:
        """A table of forecasts and bounds within the range."""
        columns = [
            name for name in table.columns if name.startswith(("forecast", "lower", "upper"))
        ]
        return table.with_columns(pl.col(columns).clip(self.least, self.most))

    def suiting(self, values: Floats) -> Limits:
        """For clients that were not trained with: detected limits hold only if they fit."""
        return Limits() if self.detected and (values < self.least).any() else self

    def warn_outside(self, values: Floats, limits: Floats) -> None:
        """Warn about normalised values [client, time] outside the normalised limits."""
        low, high = limits[:, :1], limits[:, 1:]
        if count := int(((values < low) | (values > high)).sum()):
            why = "as in training" if self.detected else "as given"
            option = "--at-least" if (values < low).any() else "--at-most"
            warnings.warn(
                f"{count} new value{'s are' if count > 1 else ' is'} outside the range that"
                f" forecasts are confined to, {why} ({self}): {option} changes it",
                stacklevel=3,
            )

    def __str__(self) -> str:
        """`at least 0`, `at least 0, at most 100`, or `any value`."""
        bounds = (("at least", self.least), ("at most", self.most))
        return ", ".join(f"{name} {b:g}" for name, b in bounds if np.isfinite(b)) or "any value"

    def confine(self, values: Floats) -> Floats:
        """Values in the data's unit within the range, which scaling back may round past."""
        return np.clip(values, self.least, self.most)

    def confined(self, forecast: Forecast) -> Forecast:
        """A forecast within the range."""
        lower, upper = self.confine(forecast.lower), self.confine(forecast.upper)
        return replace(forecast, values=self.confine(forecast.values), lower=lower, upper=upper)

    def facts(self) -> dict[str, Any]:
        """As in summary.json and in a saved ensemble; None where there is no bound."""
        return {
            "at_least": self.least if np.isfinite(self.least) else None,
            "at_most": self.most if np.isfinite(self.most) else None,
            "detected": self.detected,
        }

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Limits:
        least, most = facts["at_least"], facts["at_most"]
        return cls(
            -np.inf if least is None else float(least),
            np.inf if most is None else float(most),
            bool(facts["detected"]),
        )


NO_LIMITS = Limits()


def check_limits(chosen: Mixture) -> None:
    """Reject bounds that cannot work."""
    if NO_LIMITS.changed(chosen) != NO_LIMITS and not chosen.on:
        raise FuelsError(
            "mixture.at_least and mixture.at_most confine the forecasts of the mixture, which is"
            " off: use --preset best"
        )


def _number(text: str, name: str, unbounded: float) -> float:
    if text.strip() == NO_BOUND:
        return unbounded
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise FuelsError(f"{name} must be a number or {NO_BOUND}, not {text!r}")
    return value
