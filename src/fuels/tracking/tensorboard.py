"""A run in TensorBoard: curves of every round, written to `tensorboard/` in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuels.config import Settings
from fuels.federation.loop import Round
from fuels.tracking.trackers import figures, final_figures
from fuels.version import optional

FOLDER = "tensorboard"


class TensorBoard:
    """A resumed run continues the same curves."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        what, place = "the package tensorboard", "--track tensorboard"
        writer = optional("torch.utils.tensorboard", what, "tensorboard", place).SummaryWriter
        # Opened with the first round: a run that cannot start leaves no files.
        self._open: Callable[[], Any] = lambda: writer(str(folder / FOLDER))
        self._writer: Any = None

    def on_round(self, done: Round) -> None:
        for name, value in figures(done).items():
            self._add(name.replace("_", "/", 1), value, done.number)

    def finish(self, summary: Mapping[str, Any], folder: Path) -> None:
        for name, value in final_figures(summary).items():
            self._add(f"test/{name}", value, summary["rounds"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, name: str, value: float, step: int) -> None:
        if self._writer is None:
            self._writer = self._open()
        self._writer.add_scalar(name, value, step)
