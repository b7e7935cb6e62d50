"""The run folder: the results of a run, and what it needs to resume.

config.toml       reproduces the run
metrics.jsonl     one line per round, without timings
timings.jsonl     seconds per round and stage
checkpoint.safetensors   until the run is finished; checkpoint-N: later changes (journal.py)
shares/           until then: the state of clients in Ray actors, which they write themselves
models.safetensors, server.safetensors, forecasts.parquet, plots/, summary.json   at the end
report.html              everything about the run on one page
errors.parquet           errors of each client and forecast: mse, mae, mse_unit, mae_unit
ahead.parquet            the report's forecasts beyond the data: client, time, forecast, intervals
mixture.safetensors      the experts and their weights, if the run has a mixture
weights.parquet          the weights over time: client, time, one column per expert
coverage.parquet         share of each client's values inside its intervals, by level
implausible.csv          values of the data that count as missing, if there are any
data.parquet             what `fuels retrain` trains on
history.safetensors      the values of the run's clients since the start of training
learned.safetensors      what the mixture learned from later values (saved_run.py)
live/                    later values, earlier states to learn late ones, and past forecasts
                         (memory.py, states.py, issued.py)
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from fuels.arrays import Integers
from fuels.config import Engine, Settings
from fuels.data.files import make_folder, os_errors, writing
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.storage.config_file import read_config, write_toml
from fuels.storage.journal import Journal, Writer
from fuels.storage.panels import save_panel

METRICS, HISTORY = "metrics.jsonl", "history.safetensors"
DATA, INPUTS = "data.parquet", "inputs.parquet"  # of a run that was retrained


class FinishedRound(Protocol):
    """What the folder records of a round; the round loop implements it."""

    @property
    def number(self) -> int: ...
    @property
    def last(self) -> bool: ...
    @property
    def stages(self) -> Mapping[str, float]: ...
    @property
    def writer(self) -> Writer | None: ...
    def line(self) -> Mapping[str, Any]: ...
    def changed_rows(self, names: Iterable[str]) -> dict[str, Integers]: ...


class RunFolder:
    """One run on disk."""

    asks_writers = True  # see `Saver` in federation/loop.py

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / METRICS
        self.timings = path / "timings.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.journal = Journal(self.checkpoint)
        self.models = path / "models.safetensors"
        self.server = path / "server.safetensors"
        self.mixture = path / "mixture.safetensors"
        self.forecasts = path / "forecasts.parquet"
        self.errors = path / "errors.parquet"
        self.ahead = path / "ahead.parquet"
        self.weights = path / "weights.parquet"
        self.coverage = path / "coverage.parquet"
        self.implausible = path / "implausible.csv"
        self.summary = path / "summary.json"
        self.plots = path / "plots"
        self.report = path / "report.html"

    def refuse_used(self) -> None:
        path = self.path
        with os_errors(path, "cannot be read"):
            # Files that a killed start may leave behind do not count, nor data for this run.
            ours = {".lock", "config.toml.tmp", DATA, INPUTS}
            used = path.exists() and (
                not path.is_dir() or any(item.name not in ours for item in path.iterdir())
            )
        if path.exists() and not path.is_dir():
            raise FuelsError(f"{path} is a file; --out must be a folder")
        if used:
            again = f", or continue the run in it with --resume {path}"
            unfinished = self.config.is_file() and not self.finished
            raise FuelsError(
                f"{path} is not empty; choose another folder with --out"
                f"{again if unfinished else ''}"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder against other processes; the lock ends with this process."""
        with os_errors(self.path, "cannot be created"):
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FuelsError(f"{self.path}: another process is running in it") from None
            yield

    def begin(self, settings: Settings, engine: Engine) -> None:
        """Write the run's config; a folder that is not empty is refused."""
        self.refuse_used()
        make_folder(self.path)
        with writing(self.config) as temporary:
            write_toml(temporary, settings, engine)

    def refuse_finished(self) -> None:
        if self.finished:
            raise FuelsError(f"{self.path}: this run is finished; there is nothing to resume")

    @classmethod
    def reopen(cls, path: Path) -> tuple[RunFolder, Settings, Engine]:
        """An interrupted run, its settings and its engine."""
        folder = cls(path)
        if not folder.config.is_file():
            raise FuelsError(f"{path}: no run to continue here, config.toml is missing")
        settings, engine = read_config(folder.config)
        return folder, settings, engine

    def read_summary(self) -> dict[str, Any]:
        """The summary of a finished run."""
        try:
            with os_errors(self.summary, "cannot be read"):
                found: dict[str, Any] = json.loads(self.summary.read_text(encoding="utf-8"))
            int(found["rounds"])
        except (ValueError, TypeError, KeyError):
            raise FuelsError(
                f"{self.summary}: not the summary of a run; delete {self.path} to run again"
            ) from None
        return found

    @property
    def finished(self) -> bool:
        return self.summary.is_file()

    # -- during a run --------------------------------------------------------------------------

    def restore(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """The last checkpoint, if there is one; the logs are truncated to its round."""
        restored = self.journal.load() if self.checkpoint.exists() else None
        rounds = int(restored[1].get("round", 0)) if restored else 0
        if restored is None and len(read_lines(self.metrics)) > 1:  # a kill leaves one line at most
            raise FuelsError(
                f"{self.checkpoint} is missing, although {self.metrics.name} lists trained rounds;"
                " restore the file, or start again in another folder"
            )
        for log in (self.metrics, self.timings):
            lines = [line for line in read_lines(log) if line["round"] <= rounds]
            if log is self.metrics and len(lines) != rounds:
                raise FuelsError(
                    f"{log}: has only {len(lines)} of the {rounds} rounds in the checkpoint, so the"
                    " run cannot be resumed"
                )
            with writing(log) as temporary:
                temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return restored

    def save(
        self, done: FinishedRound, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
    ) -> None:
        """Log a round, then save its state if a save is due (journal.py).

        In this order a kill in between leaves an extra line, which `restore` removes; the other
        way round a line would be lost.
        """
        self._append(self.metrics, done.line())
        changed = done.changed_rows(arrays)
        self.journal.save(
            done.number, dict(arrays), facts, changed, last=done.last, writer=done.writer
        )

    def on_round(self, done: FinishedRound) -> None:
        """Log the timings of a finished round."""
        self._note(done.number, done.stages)

    @contextmanager
    def timed(self, stage: str, rounds: int) -> Iterator[None]:
        """Log the duration of a stage after the last round."""
        begun = time.perf_counter()
        yield
        self._note(rounds, {stage: time.perf_counter() - begun})

    def _note(self, number: int, stages: Mapping[str, float]) -> None:
        rounded = {name: round(seconds, 6) for name, seconds in stages.items()}
        self._append(self.timings, {"round": number, **rounded})

    def _append(self, log: Path, line: Mapping[str, Any]) -> None:
        with os_errors(log, "cannot be written"), log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint must not outlive its line in a power cut

    # -- afterwards ----------------------------------------------------------------------------

    def history(self) -> list[dict[str, Any]]:
        return read_lines(self.metrics)

    def seconds(self) -> dict[str, float]:
        """Time spent in each stage, over all rounds and after them."""
        total: dict[str, float] = {}
        for line in read_lines(self.timings):
            for stage, seconds in line.items():
                if stage != "round":
                    total[stage] = total.get(stage, 0.0) + seconds
        return total

    def remember(self, panel: Panel) -> None:
        """Write the values of the run, so that forecasts do not need its data any more."""
        with os_errors(self.path, "cannot be written"):
            save_panel(self.path / HISTORY, panel)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which marks the run as finished, and delete its checkpoint."""
        with writing(self.summary) as temporary:
            temporary.write_text(json.dumps(summary, indent=2) + "\n")
        self.journal.delete()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a log; a line truncated by a kill is dropped."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_bytes().splitlines(keepends=True):
        if text.endswith(b"\n"):
            try:
                line = json.loads(text)
                lines.append({**line, "round": int(line["round"])})
            except (ValueError, TypeError, KeyError):
                raise FuelsError(f"{path}: not a valid line for a round: {text[:60]!r}") from None
    return lines


def free_folder(parent: Path, name: str) -> Path:
    """`parent/name-001`, or the next number that is free."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    number = 1
    while (parent / f"{stem}-{number:03d}").exists():
        number += 1
    return parent / f"{stem}-{number:03d}"
