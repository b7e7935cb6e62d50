"""Where a study stands: run k of n, with the display of the rounds inside.

A `Teller` speaks of a whole study; its `place` speaks of one run of it and is handed down to where
the run is found, gone on with or done.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Protocol

from rich.console import Console

from fuels.config import Settings
from fuels.federation.loop import Loop, Watcher
from fuels.methods.registry import method_options
from fuels.report.display import progress
from fuels.report.style import short


class Place(Protocol):
    """One run of a study."""

    def found(self, settings: Settings) -> None:
        """The run was already done."""

    def rounds(self, loop: Loop, settings: Settings) -> AbstractContextManager[Watcher]:
        """The display of its rounds."""


class Teller(Protocol):
    """A whole study."""

    def place(self, number: int, of: int) -> Place | None: ...


class Quiet:
    """Says nothing."""

    def place(self, number: int, of: int) -> Place | None:
        return None


class Spoken:
    """One line a run, and the display of its rounds, on the console (stderr)."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)

    def place(self, number: int, of: int) -> Place:
        return SpokenPlace(self.console, number, of)


class SpokenPlace:
    def __init__(self, console: Console, number: int, of: int) -> None:
        self.console, self.number, self.of = console, number, of

    def found(self, settings: Settings) -> None:
        self._say(f"{self._name(settings)} (already done)")

    def rounds(self, loop: Loop, settings: Settings) -> AbstractContextManager[Watcher]:
        after = f", going on after round {loop.round}" if loop.round else ""
        self._say(f"{self._name(settings)}{after}")
        return progress(
            loop.training.rounds,
            loop.round,
            self.console,
            title=f"run {self.number} of {self.of}, {loop.method.title}",
            best_score=loop.best_score,
            best_round=loop.best_round,
        )

    def _name(self, settings: Settings) -> str:
        usual = asdict(method_options(settings.method, {}))
        special = {k: v for k, v in settings.options.items() if v != usual[k]}
        plain = Settings()
        for key, value, default in (  # what else tells the runs of an experiment apart
            ("preset", settings.preset, plain.preset),
            ("hidden", settings.model.hidden, plain.model.hidden),
            ("newcomers", settings.data.newcomers, plain.data.newcomers),
        ):
            if value != default:
                special[key] = value
        options = ", ".join(f"{key}={value}" for key, value in special.items())
        source = settings.data.source.replace("\\", "/").rsplit("/", 1)[-1]
        parts = [settings.method, short(source, 40), f"seed {settings.seed}", options]
        return f"run {self.number} of {self.of}: {', '.join(part for part in parts if part)}"

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
