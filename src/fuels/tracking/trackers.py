"""Trackers: watchers of a run that show it in another tool, chosen with `fuels run --track`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fuels.config import Settings, nearest
from fuels.errors import FuelsError
from fuels.federation.loop import Round


class Tracker(Protocol):
    """Receives every finished round and, at the end, the summary of the run."""

    def on_round(self, done: Round) -> None: ...

    def finish(self, summary: Mapping[str, Any], folder: Path) -> None: ...

    def close(self) -> None: ...


TRACKERS = {
    "tensorboard": "fuels.tracking.tensorboard:TensorBoard",
    "mlflow": "fuels.tracking.mlflow:MLflow",
}


@contextmanager
def opened(names: Sequence[str], settings: Settings, folder: Path) -> Iterator[list[Tracker]]:
    """The trackers with these names; they are closed at the end, also after an error."""
    for name in names:
        if name not in TRACKERS:
            raise FuelsError(f"--track {name} is unknown{nearest(name, TRACKERS)}")
    with ExitStack() as stack:
        found: list[Tracker] = []
        for name in dict.fromkeys(names):
            module, _, kind = TRACKERS[name].partition(":")
            tracker = getattr(import_module(module), kind)(settings, folder)
            stack.callback(tracker.close)
            found.append(tracker)
        yield found


def figures(done: Round) -> dict[str, float]:
    """The numbers of a round, as in metrics.jsonl."""
    return {
        name: float(value)
        for name, value in done.line().items()
        if name != "round" and isinstance(value, int | float)
    }


def final_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """The errors on the test part by forecast: `FUELS/mse` and so on."""
    return {
        f"{name}/{key}": float(value)
        for name, means in summary["scores"].items()
        for key, value in means.items()
        if value is not None
    }
