"""Progress of a study on the console: one line per run, and the display of its rounds."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console

from fuels.config import Settings
from fuels.federation.loop import Loop, Watcher
from fuels.methods.registry import method_options
from fuels.report.display import loop_progress
from fuels.report.style import short


@dataclass(frozen=True)
class Reporter:
    """Reports run `number` of `total` on stderr."""

    console: Console = field(default_factory=lambda: Console(stderr=True))
    number: int = 1
    total: int = 1

    def run(self, number: int, total: int) -> Reporter:
        """The reporter of one run of a study."""
        return replace(self, number=number, total=total)

    def reused(self, settings: Settings) -> None:
        """The run was already done."""
        self.say(f"{self._name(settings)} (already done)")

    def rounds(self, loop: Loop, settings: Settings) -> AbstractContextManager[Watcher]:
        """The display of the run's rounds."""
        resumed = f", resuming after round {loop.round}" if loop.round else ""
        self.say(f"{self._name(settings)}{resumed}")
        title = f"run {self.number} of {self.total}, {loop.method.title}"
        return loop_progress(loop, self.console, title)

    def _name(self, settings: Settings) -> str:
        """The method, the data, the seed, and every other setting that the study varies."""
        defaults = asdict(method_options(settings.method, {}))
        varied = {k: v for k, v in settings.options.items() if v != defaults[k]}
        usual = _varied(Settings())
        varied |= {k: v for k, v in _varied(settings).items() if v != usual[k]}
        options = ", ".join(f"{key}={value}" for key, value in varied.items())
        source = settings.data.source.replace("\\", "/").rsplit("/", 1)[-1]
        parts = [settings.method, short(source, 40), f"seed {settings.seed}", options]
        return f"run {self.number} of {self.total}: {', '.join(part for part in parts if part)}"

    def say(self, line: str) -> None:
        """One line of progress."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _varied(settings: Settings) -> dict[str, Any]:
    """Settings besides the method's options that studies vary."""
    data, model = settings.data, settings.model
    return {"preset": settings.preset, "hidden": model.hidden, "newcomers": data.newcomers}


SILENT = Reporter(Console(file=io.StringIO(), quiet=True))
