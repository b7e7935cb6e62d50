"""Training that is looked at from inside, for what no record keeps.

Such a run is saved as it goes in the store's `inside`, with what was seen so far: when it is
interrupted it goes on, and when it is asked for again it is not trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from fuels.config import Settings
from fuels.federation.loop import Round, Watcher
from fuels.research.experiments.base import Context
from fuels.research.study.files import make_folder
from fuels.research.study.store import run_key
from fuels.runs.build import Job, build
from fuels.runs.run import SAVING
from fuels.runs.settings import resolve
from fuels.storage.checkpoint import prefixed, unprefixed
from fuels.storage.journal import Journal

SEEN = "seen"  # prefix of a look's own arrays


class Look(Watcher, Protocol):
    """Looks at a run after each round; its arrays are all that it has seen."""

    def arrays(self) -> dict[str, NDArray[Any]]: ...

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None: ...


L = TypeVar("L", bound=Look)


def follow(
    context: Context, name: str, settings: Settings, begin: Callable[[Job], L]
) -> tuple[Job, L]:
    """Train these settings, or go on, with a look inside that `begin` makes before round 1."""
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
        reporter = context.reporter
        display = nullcontext() if reporter is None else reporter.rounds(job.loop, settings)
        with display as shown:
            job.loop.run([] if shown is None else [shown], saver=_Saver(journal, look))
    return job, look


class _Saver:
    """Looks at a round before it is saved, so that what was seen is saved with it."""

    def __init__(self, journal: Journal, look: Look) -> None:
        self.journal, self.look = journal, look

    def save(
        self, done: Round, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
    ) -> None:
        self.look.on_round(done)
        every = {**arrays, **prefixed(SEEN, self.look.arrays())}
        self.journal.save(done.number, every, facts, {}, last=done.last)
