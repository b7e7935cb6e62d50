"""Runs that are observed during training, for what no record holds.

Such a run is saved in the store's folder `inside` after each round, with the observations so far:
an interrupted run resumes, and a finished one is not trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from fuels.config import Settings
from fuels.data.files import make_folder
from fuels.federation.loop import Round, Watcher
from fuels.research.experiments.base import Context
from fuels.research.study.store import run_key
from fuels.runs.build import Job, build
from fuels.runs.run import SAVING
from fuels.runs.settings import resolve
from fuels.storage.checkpoint import prefixed, unprefixed
from fuels.storage.journal import Journal

SEEN = "seen"  # prefix of the observer's arrays


class Look(Watcher, Protocol):
    """Observes a run after each round; its arrays hold all observations."""

    def arrays(self) -> dict[str, NDArray[Any]]: ...

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None: ...


L = TypeVar("L", bound=Look)


def follow(
    context: Context, name: str, settings: Settings, begin: Callable[[Job], L]
) -> tuple[Job, L]:
    """Train these settings, or resume, with an observer that `begin` makes before round 1."""
    settings = resolve(settings)
    key = f"{name}-{run_key(settings, context.dataset(settings))}"
    folder = context.store.runs / "inside"
    make_folder(folder)
    journal = Journal(folder / f"{key}.safetensors", SAVING)
    with context.store.locked(key):
        job = build(settings, context.engine, context.store.panel(settings))
        look = begin(job)
        if journal.path.exists():
            arrays, facts = journal.load()
            job.loop.load(arrays, facts)
            look.load(unprefixed(SEEN, arrays))
        context.train(job, _Saver(journal, look))
    return job, look


class _Saver:
    """Observes a round before it is saved, so that the observations are saved with it."""

    def __init__(self, journal: Journal, look: Look) -> None:
        self.journal, self.look = journal, look

    def save(
        self, done: Round, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
    ) -> None:
        self.look.on_round(done)
        every = {**arrays, **prefixed(SEEN, self.look.arrays())}
        self.journal.save(done.number, every, facts, {}, last=done.last)
