"""Forecasts as they were issued, kept to be compared with what happened.

live/issued-TIME.safetensors holds the forecasts made after the steps of one period, at least 24,
from TIME on, with their intervals and when they were made. Each forecast replaces the file as a
whole; the newest 15 files are kept. Of several forecasts made after the same step, the newest
counts. Numbers have single precision. Nothing that is learned depends on these files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Datetimes, Floats32, Integers
from fuels.errors import FuelsError
from fuels.experts.personal_model import Forecast
from fuels.forecasting.memory import LIVE
from fuels.forecasting.saved_run import SavedRun
from fuels.storage.checkpoint import load_state, replace_state

FORMAT = 1
KEPT = 15  # files: 14 whole periods and the current one
LEAST = 24  # steps in a file
NAMES = "issued-*.safetensors"
EPOCH = np.datetime64(0, "s")


@dataclass(frozen=True)
class Issued:
    """Past forecasts, in the data's unit; NaN where none was made."""

    ids: tuple[str, ...]
    levels: tuple[float, ...]
    step: np.timedelta64
    cutoffs: Datetimes  # [origin]: the last known step, in order
    issued: Integers  # [origin]: seconds since 1970, UTC
    made: Floats32  # [origin, bound, client, step]: forecast, lower and upper bounds

    @property
    def horizon(self) -> int:
        return int(self.made.shape[3])

    @classmethod
    def of(cls, made: Forecast, step: np.timedelta64, now: float) -> Issued:
        """One forecast."""
        bounds = [made.values, *made.lower, *made.upper]
        cutoff = (made.times[:1] - step).astype("datetime64[s]")
        values = np.stack(bounds)[None].astype(np.float32)
        return cls(made.ids, made.levels, step, cutoff, np.array([int(now)]), values)

    def with_(self, other: Issued) -> Issued:
        """These and other forecasts, which count where both have one."""
        if other.levels != self.levels:
            return other  # the intervals of a run do not change: these are another run's
        ids = tuple(dict.fromkeys((*self.ids, *other.ids)))
        cutoffs = np.union1d(self.cutoffs, other.cutoffs)
        shape = (len(cutoffs), self.made.shape[1], len(ids), max(self.horizon, other.horizon))
        made, issued = np.full(shape, np.nan, np.float32), np.zeros(len(cutoffs), np.int64)
        place = {client: i for i, client in enumerate(ids)}
        for each in (self, other):
            rows = np.searchsorted(cutoffs, each.cutoffs)
            columns = np.array([place[client] for client in each.ids])
            block = made[rows[:, None], :, columns[None]]  # [origin, client, bound, step]
            block[..., : each.horizon] = np.swapaxes(each.made, 1, 2)
            made[rows[:, None], :, columns[None]] = block
            issued[rows] = each.issued
        return replace(self, ids=ids, cutoffs=cutoffs, issued=issued, made=made)


def record(saved: SavedRun, made: Forecast, now: float | None = None) -> None:
    """Keep a forecast of a run that is about to be issued."""
    step = np.timedelta64(saved.models.step_seconds, "s")
    folder, new = saved.folder / LIVE, Issued.of(made, step, time.time() if now is None else now)
    span = max(saved.models.period, LEAST) * step
    path = file_of(folder, new.cutoffs[0], span)
    if path.is_file():
        try:
            new = _read(path).with_(new)
        except FuelsError as error:
            saved.notes.append(f"{error}: fuels monitor will lack the forecasts in it")
    facts = {
        "format": FORMAT,
        "ids": list(new.ids),
        "levels": list(new.levels),
        "step": int(step / np.timedelta64(1, "s")),
    }
    arrays: dict[str, NDArray[Any]] = {
        "cutoffs": (new.cutoffs - EPOCH).astype(np.int64),
        "issued": new.issued,
        "made": new.made,
    }
    with saved.saving("fuels monitor will lack this forecast"):
        folder.mkdir(exist_ok=True)
        replace_state(path, arrays, facts)
        for old in sorted(folder.glob(NAMES))[:-KEPT]:
            old.unlink()


def read_issued(folder: Path) -> Issued | None:
    """The forecasts that a run folder has kept; None without any."""
    found: Issued | None = None
    for path in sorted((folder / LIVE).glob(NAMES)):
        one = _read(path)
        found = one if found is None else found.with_(one)
    return found


def file_of(folder: Path, cutoff: np.datetime64, span: np.timedelta64) -> Path:
    """The file with the forecasts made after a step."""
    first = EPOCH + (cutoff - EPOCH) // span * span
    return folder / f"issued-{str(first).replace(':', '_')}.safetensors"


def _read(path: Path) -> Issued:
    try:
        arrays, facts = load_state(path)
    except FuelsError as error:
        raise FuelsError(f"{error}; delete it to monitor the others") from None
    if facts.get("format") != FORMAT:
        raise FuelsError(f"{path}: past forecasts in a format that this version does not read")
    return _checked(path, arrays, facts)


def _checked(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Issued:
    ids, levels = tuple(facts["ids"]), tuple(facts["levels"])
    made, cutoffs, issued = arrays["made"], arrays["cutoffs"], arrays["issued"]
    if made.shape[:3] != (len(cutoffs), 1 + 2 * len(levels), len(ids)):
        raise FuelsError(f"{path}: {len(ids)} clients do not fit an array of {made.shape}")
    step = np.timedelta64(facts["step"], "s")
    return Issued(ids, levels, step, EPOCH + cutoffs.astype("timedelta64[s]"), issued, made)
