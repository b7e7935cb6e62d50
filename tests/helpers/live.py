"""A small run and the hours after it, as they arrive, with or without drift."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from fuels.data.clock import format_moment
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.forecasting.issued import record
from fuels.forecasting.saved_run import SavedRun
from fuels.forecasting.table import long_frame
from helpers.commands import FUELS

CLIENTS, DAYS, AFTER = 6, 21, 8  # days of the run's own data, and after them
NOW = DAYS * 24


def whole_panel() -> Panel:
    made = synthesise("net", clients=CLIENTS, days=DAYS + AFTER, seed=11)
    return replace(made, values=np.round(made.values, 2), coordinates=None)


def make_run(folder: Path) -> Path:
    """A run of preset best on the first days."""
    long_frame(hours(whole_panel(), 0, NOW)).write_csv(folder / "own.csv")
    words = ("run", "--data", "own.csv", "--split", "14/0/7", "--out", "run", "--rounds", "1")
    small = ("--set", "model.hidden=8", "--threads", "1", "--no-plots", "--timezone", "Europe/Rome")
    subprocess.run([*FUELS, *words, *small], cwd=folder, check=True, capture_output=True)
    return folder / "run"


def copied(made: Path, to: Path) -> Path:
    return Path(shutil.copytree(made, to))


def hours(panel: Panel, first: int, last: int) -> Panel:
    return replace(panel, values=panel.values[first:last].copy(), start=panel.times[first])


def as_json(panel: Panel) -> str:
    """The body of a post."""
    rows = [
        {"client": client, "time": format_moment(time, panel.timezone), "value": float(value)}
        for time, values in zip(panel.times, panel.values, strict=True)
        for client, value in zip(panel.ids, values, strict=True)
    ]
    return json.dumps({"values": rows})


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of `fuels serve` on a free port, and its address."""
    command = [*FUELS, "serve", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if line.startswith("serving "):
                break
        else:
            raise AssertionError("".join(said))
        yield process, said[-1].split(" at ")[1].strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def drifted(panel: Panel, at: int, kind: str) -> Panel:
    """The same data with other values from a step on: half as high again, or six hours late."""
    values = panel.values.copy()
    if kind == "level":
        values[at:] += 0.5 * values[:at].mean(axis=0)
    elif kind == "scale":
        values[at:] *= 1.6
    elif kind == "pattern":
        values[at:] = panel.values[at - 6 : -6]
    return replace(panel, values=values)


def follow(folder: Path, panel: Panel, first: int, last: int, horizon: int = 1) -> None:
    """Give a run hour after hour, and issue a forecast after each, as `fuels forecast` does."""
    saved = SavedRun.load(folder)
    for step in range(first, last):
        made, _ = saved.forecast(hours(panel, step, step + 1), horizon)
        record(saved, made)
