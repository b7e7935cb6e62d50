"""The store of finished runs: a run with the same settings and data is never repeated.

A run's key is a short digest of its completed settings and of the values it trains on. It does not
depend on where the data file is, what it is called, or on the machine. A finished run leaves a run
folder `runs/store/KEY` and its record `runs/store/KEY.json`. Records may also be in a second place,
a folder of JSON files or an archive (archive.py); a record there is enough. An interrupted run
resumes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fuels.config import Data, Engine, Settings, to_dict
from fuels.data.files import make_folder, os_errors, write_text
from fuels.data.inputs import digest as inputs_digest
from fuels.data.loading import SYNTHETIC_CLIENTS, load_panel
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.research.study.archive import is_archive, read_archive
from fuels.research.study.progress import SILENT, Reporter
from fuels.research.study.record import (
    NOTHING_TO_COMPARE,
    Record,
    agree,
    describe,
    describes_data,
    make_record,
)
from fuels.runs.build import build, load_dataset, make_method
from fuels.runs.run import evaluate_job, outcome_of, run
from fuels.runs.settings import ResolvedSettings, resolve
from fuels.storage.config_file import flat
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder, free_folder

DEFAULT_RUNS = Path("runs") / "store"
# Raise these when the same settings give other results: earlier runs are then not reused.
TRAINING_REVISION = MIXTURE_REVISION = 0
T = TypeVar("T")
LOST = 1e-3  # standard deviations that a value may lose to single precision in the digest


@dataclass
class Store:
    """Where finished runs are looked up and saved."""

    runs: Path = DEFAULT_RUNS
    records: Path | None = None  # second place for records: a folder, or an archive to read
    panels: dict[Data, Panel] = field(default_factory=dict)  # read once, used by many runs

    @property
    def record_folder(self) -> Path | None:
        """The second place, if new records are written there too."""
        return None if self.records is None or is_archive(self.records) else self.records

    @cached_property
    def archived(self) -> dict[str, Record]:
        archive = self.records if self.record_folder is None else None
        return {} if archive is None else read_archive(archive)

    def panel(self, settings: Settings) -> Panel:
        # Neither the choice of clients nor newcomers change what is read, but a synthetic
        # federation grows with its number of clients.
        clients = max(SYNTHETIC_CLIENTS, settings.data.clients)
        wanted = replace(settings.data, clients=clients, newcomers="")
        if wanted not in self.panels:
            self.panels[wanted] = load_panel(settings)
        return self.panels[wanted]

    def dataset(self, settings: Settings) -> Dataset:
        return load_dataset(settings, self.panel(settings))

    def folder(self, key: str, settings: Settings) -> RunFolder:
        """The run's folder; one made under other defaults is moved to `old`."""
        folder = RunFolder(self.runs / key)
        if folder.config.is_file():
            _, stored, _ = RunFolder.reopen(folder.path)
            if not agree(describe(stored), describe(settings)):
                aside = free_folder(self.runs / "old", key)
                make_folder(aside.parent)
                folder.path.rename(aside)
        return folder

    def record_files(self, key: str, method: str) -> list[Path]:
        """Where the record of a run is written."""
        second = self.record_folder
        found = [self.runs / f"{key}.json"]
        return found if second is None else [*found, second / f"{method}-{key}.json"]

    def find(self, key: str, settings: Settings, *, by_period: bool = False) -> Record | None:
        """The record of a finished run with these settings; `by_period`: with errors by period."""
        files = self.record_files(key, settings.method)
        candidates = [Record.read(path) for path in files if path.is_file()]
        archived = self.archived.get(f"{settings.method}-{key}")
        candidates += [] if archived is None else [archived]
        wanted = describe(settings)
        fitting = (record for record in candidates if agree(record.settings, wanted))
        return next((record for record in fitting if record.by_period or not by_period), None)

    def save(self, record: Record) -> Record:
        """Write the record where there is none, or one with other settings or with less in it.

        Returns it as read back, so that a table made later has the same digits.
        """
        first, *_ = files = self.record_files(record.key, record.method)
        for path in files:
            if not path.is_file() or not Record.read(path).serves_as(record):
                record.write(path)
        return Record.read(first)

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Keeps other studies that share the store from working on this run."""
        locks = self.runs / "locks"
        make_folder(locks)
        with os_errors(locks, "cannot be written"):
            lock = (locks / key).open("w")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it if this process is killed
            yield

    def once(
        self,
        kind: str,
        key: str,
        compute: Callable[[], Mapping[str, Any]],
        parse: Callable[[dict[str, Any]], T],
    ) -> tuple[T, bool]:
        """What `parse` makes of a JSON object, computed only once, and whether that was now.

        A computed object is also read back, so that a table made later has the same digits.
        """
        path = self.runs / kind / f"{key}.json"
        with self.locked(f"{kind}-{key}"):
            new = not path.is_file()
            if new:
                write_text(path, json.dumps(compute()) + "\n")
            try:
                return parse(json.loads(path.read_text(encoding="utf-8"))), new
            except (OSError, ValueError, TypeError, KeyError):
                raise FuelsError(
                    f"{path}: not a result of this experiment; delete it, and it is computed again"
                ) from None


@dataclass(frozen=True)
class RunResult:
    """A finished run: its record, and its folder if there is one."""

    record: Record
    folder: RunFolder | None = None


def ensure_run(
    settings: Settings,
    engine: Engine,
    store: Store,
    *,
    with_folder: bool = False,
    by_period: bool = False,
    reporter: Reporter = SILENT,
) -> RunResult:
    """The run with these settings: reused, resumed, or trained now.

    `with_folder` also asks for models and forecasts, which a record does not have, and `by_period`
    for errors by test period, which early records do not have.
    """
    settings = resolve(settings)
    dataset = store.dataset(settings)
    key = run_key(settings, dataset)
    with store.locked(key):
        folder = store.folder(key, settings)
        record = store.find(key, settings, by_period=by_period)
        if record is None and folder.finished:
            record = rebuild_record(key, settings, engine, folder, store.panel(settings))
        if record is None or (with_folder and not folder.finished):
            outcome = run(
                settings,
                engine,
                folder,
                panel=store.panel(settings),
                resume=folder.config.is_file(),
                watch=lambda loop: reporter.rounds(loop, settings),
                plots=False,
            )
            record = make_record(key, outcome)
        else:
            reporter.reused(settings)
        record = store.save(record)
        if record.clients != dataset.ids:
            raise FuelsError(
                f"{store.record_files(key, settings.method)[0]}: the record of a run with other"
                " clients; delete it to run again"
            )
        # The same values may have been run under another name.
        record = replace(record, data={**record.data, "name": dataset.panel.name})
        return RunResult(record, folder if folder.finished else None)


def ensure_runs(
    wanted: Sequence[Settings],
    engine: Engine,
    store: Store,
    *,
    reporter: Reporter = SILENT,
    **needs: bool,
) -> list[RunResult]:
    """Many runs, in the given order; `needs` are those of `ensure_run`."""
    resolved = check_runs(wanted, store)
    done = []
    for number, settings in enumerate(resolved, 1):
        place = reporter.run(number, len(wanted))
        try:
            done.append(ensure_run(settings, engine, store, reporter=place, **needs))
        except FuelsError as error:
            raise FuelsError(
                f"run {number} of {len(wanted)} ({settings.method}, seed {settings.seed}): {error};"
                " all runs before it are saved and will be reused"
            ) from error
    return done


def check_runs(wanted: Sequence[Settings], store: Store) -> list[ResolvedSettings]:
    """Refuse runs that cannot work before hours are spent on the others; returns them resolved."""
    resolved = [resolve(settings) for settings in wanted]
    for settings in {_without_idle_seed(each): each for each in resolved}.values():
        dataset = store.dataset(settings)
        make_method(settings, dataset)
        first, last = dataset.split.part("test")
        if not dataset.target[:, first:last].any():
            raise FuelsError(NOTHING_TO_COMPARE.format(dataset.panel.name))
    return resolved


def _without_idle_seed(settings: Settings) -> str:
    """Runs that differ only in the seed are checked once, unless the seed draws the clients."""
    content = to_dict(settings)
    if not (settings.data.clients or settings.data.newcomers):
        del content["seed"]
    return json.dumps(content)


def rebuild_record(
    key: str, settings: Settings, engine: Engine, folder: RunFolder, panel: Panel
) -> Record:
    """The record of a run that finished but was killed before writing its record."""
    summary = folder.read_summary()
    if len(folder.history()) != summary["rounds"]:
        raise FuelsError(
            f"{folder.metrics}: holds {len(folder.history())} of {summary['rounds']} rounds; delete"
            f" {folder.path} to run again"
        )
    with build(settings, engine, panel) as job:
        evaluation = evaluate_job(job, load_models(folder.models), folder.path)
        outcome = outcome_of(job, folder, evaluation)
    return make_record(key, replace(outcome, summary=summary))


# -- what makes two runs the same --------------------------------------------------------------


def run_key(settings: Settings, dataset: Dataset) -> str:
    """Short digest of everything that decides a run's result.

    Only settings that differ from the defaults count, so that a setting added later does not change
    the keys of earlier runs. The digest of the values covers the source and the split of the data.
    """
    deciding: dict[str, Any] = {"settings": _deciding(settings), "data": data_digest(dataset)}
    revision = (TRAINING_REVISION, MIXTURE_REVISION if settings.mixture.on else 0)
    if any(revision):
        deciding["revision"] = revision
    text = json.dumps(deciding, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _deciding(settings: Settings) -> dict[str, Any]:
    """Completed settings that differ from the defaults, by their name in config.toml."""
    given = flat(describe(settings))
    defaults = flat(describe(Settings(method=settings.method)))
    return {
        name: value
        for name, value in given.items()
        if (value != defaults.get(name) or name == "method") and not describes_data(name)
    }


def data_digest(dataset: Dataset) -> str:
    """Digest of the training values in single precision: the last bit may differ by machine."""
    panel, digest = dataset.panel, hashlib.blake2b(digest_size=8)
    digest.update("\n".join(dataset.ids).encode())
    single = np.ascontiguousarray(panel.values, dtype="<f4")
    digest.update(single.tobytes())
    # Single precision cannot resolve the steps of a meter that counts to billions.
    lost = np.nanmax(np.abs(panel.values - single), axis=0, initial=0.0)
    if (lost > LOST * dataset.std).any():
        digest.update(np.ascontiguousarray(dataset.series, dtype="<f4").tobytes())
    split = dataset.split
    place = (str(panel.start), panel.step_seconds, panel.timezone, dataset.offset)
    digest.update(str((*place, split.train, split.val, split.test)).encode())
    if panel.coordinates is not None:
        digest.update(np.ascontiguousarray(panel.coordinates, dtype="<f4").tobytes())
    digest.update(inputs_digest(panel.inputs))
    return digest.hexdigest()
