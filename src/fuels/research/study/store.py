"""The store: a run that was done with the same settings on the same data is never done again.

A run's key is a short digest of its completed settings and of the values it trains on, so the
place and the name of a file do not matter, nor does how fast it was computed. A finished run leaves
a run folder `runs/store/KEY` and its record `KEY.json`; the record alone may also lie in a second
place that is kept with the project, and is then enough. A run that was interrupted goes on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fuels.config import Data, Engine, Settings, check
from fuels.data.loading import SYNTHETIC_CLIENTS, load_dataset, load_panel
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.federation.loop import Loop, Watcher
from fuels.methods.registry import complete, method_options
from fuels.research.study.files import make_folder
from fuels.research.study.progress import Place, Teller
from fuels.research.study.record import NOTHING_TO_COMPARE, Record, described, make_record
from fuels.runs.build import build, make_method
from fuels.runs.run import evaluate_job, outcome_of, run
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder, free_folder

DEFAULT_RUNS = Path("runs") / "store"
# To be raised by whoever changes what the same settings give: runs from before are then not taken.
TRAINING_REVISION = MIXTURE_REVISION = 0
LOST = 1e-3  # standard deviations that a value may lose to single precision in the digest


@dataclass
class Store:
    """Where finished runs are looked for and kept."""

    runs: Path = DEFAULT_RUNS
    records: Path | None = None  # second place for records, kept with the project
    panels: dict[Data, Panel] = field(default_factory=dict)  # read once, used by many runs

    def panel(self, settings: Settings) -> Panel:
        # Drawing clients is not reading, nor is making some of them new; but a large synthetic
        # federation is another one.
        clients = max(SYNTHETIC_CLIENTS, settings.data.clients)
        wanted = replace(settings.data, clients=clients, newcomers="")
        if wanted not in self.panels:
            self.panels[wanted] = load_panel(settings)
        return self.panels[wanted]

    def dataset(self, settings: Settings) -> Dataset:
        return load_dataset(settings, self.panel(settings))

    def folder(self, key: str, settings: Settings) -> RunFolder:
        """The run's folder; one that was made under other defaults is put aside."""
        folder = RunFolder(self.runs / key)
        if folder.config.is_file():
            _, stored, _ = RunFolder.reopen(folder.path)
            if not same_settings(described(stored), described(settings)):
                aside = free_folder(self.runs / "old", key)
                make_folder(aside.parent)
                folder.path.rename(aside)
        return folder

    def places(self, key: str, method: str) -> list[Path]:
        """Where the record of a run may lie."""
        second = [] if self.records is None else [self.records / f"{method}-{key}.json"]
        return [self.runs / f"{key}.json", *second]

    def find(self, key: str, settings: Settings) -> Record | None:
        """The record of a finished run with these settings."""
        for path in self.places(key, settings.method):
            if path.is_file():
                record = Record.read(path)
                if same_settings(record.settings, described(settings)):
                    return record
        return None

    def keep(self, record: Record) -> Record:
        """Write the record where it is not yet, or where another one stands.

        Returns it as it can be read: a table made later has the same digits.
        """
        first, *_ = places = self.places(record.key, record.method)
        for path in places:
            if not path.is_file() or not same_settings(Record.read(path).settings, record.settings):
                record.write(path)
        return Record.read(first)

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Nobody else works on this run meanwhile: two studies may share a store."""
        locks = self.runs / "locks"
        make_folder(locks)
        try:
            lock = (locks / key).open("w")
        except OSError as error:
            raise FuelsError(f"{locks}: cannot be written ({error.strerror})") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # let go of by the system if we are killed
            yield


@dataclass(frozen=True)
class RunResult:
    """A finished run: its record, and its folder where it was asked for."""

    record: Record
    folder: RunFolder | None = None


def ensure_run(
    settings: Settings,
    engine: Engine,
    store: Store,
    *,
    with_folder: bool = False,
    teller: Place | None = None,
) -> RunResult:
    """The run of these settings: found, gone on with, or done.

    `with_folder` asks for its models and forecasts as well, which a kept record does not have.
    """
    check(settings)
    settings = spelt_out(settings)
    dataset = store.dataset(settings)
    key = run_key(settings, dataset)
    with store.alone(key):
        folder = store.folder(key, settings)
        found = store.find(key, settings)
        if found is None and folder.finished:
            found = evaluated_again(key, settings, engine, folder, store.panel(settings))
        if found is None or (with_folder and not folder.finished):
            found = _train(key, settings, engine, folder, store.panel(settings), teller)
        elif teller is not None:
            teller.found(settings)
        kept = store.keep(found)
        if kept.clients != dataset.ids:
            raise FuelsError(
                f"{store.places(key, settings.method)[0]}: the record of a run of other clients;"
                " delete it to run again"
            )
        # The same values may have been run under another name.
        kept = replace(kept, data={**kept.data, "name": dataset.panel.name})
        return RunResult(kept, folder if folder.finished else None)


def ensure_runs(
    wanted: Sequence[Settings],
    engine: Engine,
    store: Store,
    *,
    with_folder: bool = False,
    teller: Teller,
) -> list[RunResult]:
    """Many runs in the order asked for."""
    check_runs(wanted, store)
    done = []
    for number, settings in enumerate(wanted, 1):
        place = teller.place(number, len(wanted))
        try:
            done.append(ensure_run(settings, engine, store, with_folder=with_folder, teller=place))
        except FuelsError as error:
            raise FuelsError(
                f"run {number} of {len(wanted)} ({settings.method}, seed {settings.seed}): {error};"
                " all runs before it are kept and will not be done again"
            ) from error
    return done


def check_runs(wanted: Sequence[Settings], store: Store) -> None:
    """Refuse what cannot work before hours are spent on the others."""
    # A seed matters to that only where it draws clients.
    for settings in {repr(_without_idle_seed(each)): each for each in wanted}.values():
        check(settings)
        dataset = store.dataset(settings)
        make_method(spelt_out(settings), dataset)
        first, last = dataset.split.part("test")
        if not dataset.target[:, first:last].any():
            raise FuelsError(NOTHING_TO_COMPARE.format(dataset.panel.name))


def _without_idle_seed(settings: Settings) -> Settings:
    drawn = settings.data.clients or settings.data.newcomers
    return settings if drawn else replace(settings, seed=0)


def _train(
    key: str,
    settings: Settings,
    engine: Engine,
    folder: RunFolder,
    panel: Panel,
    teller: Place | None,
) -> Record:
    def watch(loop: Loop) -> AbstractContextManager[Watcher | None]:
        return nullcontext() if teller is None else teller.rounds(loop, settings)

    resume = folder.config.is_file()
    outcome = run(settings, engine, folder, panel=panel, resume=resume, watch=watch, plots=False)
    return make_record(key, outcome)


def evaluated_again(
    key: str, settings: Settings, engine: Engine, folder: RunFolder, panel: Panel
) -> Record:
    """The record of a run that was finished but killed before its record was written."""
    summary = folder.read_summary()
    if len(folder.history()) != summary["rounds"]:
        raise FuelsError(
            f"{folder.metrics}: holds {len(folder.history())} of {summary['rounds']} rounds; delete"
            f" {folder.path} to run again"
        )
    with build(settings, engine, panel) as job:
        outcome = outcome_of(job, folder, evaluate_job(job, load_models(folder.models)))
    return make_record(key, replace(outcome, summary=summary))


# -- what makes two runs the same --------------------------------------------------------------


def run_key(settings: Settings, dataset: Dataset) -> str:
    """Short digest of what decides a run's result.

    Only what differs from the defaults goes in, so that a setting that is added later leaves the
    keys of earlier runs alone. Where the data come from and how they are divided is covered by the
    values themselves.
    """
    deciding: dict[str, Any] = {"settings": _deciding(settings), "data": data_digest(dataset)}
    revision = (TRAINING_REVISION, MIXTURE_REVISION if settings.mixture.on else 0)
    if any(revision):
        deciding["revision"] = revision
    text = json.dumps(deciding, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _deciding(settings: Settings) -> dict[str, Any]:
    """Completed settings that are not the default, by their name in config.toml."""
    given = flat(described(settings))
    usual = flat(described(Settings(method=settings.method)))
    return {
        name: value
        for name, value in given.items()
        if (value != usual.get(name) or name == "method") and not _of_data(name)
    }


def _of_data(name: str) -> bool:
    return name.startswith("data.") or name == "windows.split"


def spelt_out(settings: Settings) -> Settings:
    """Settings with every number that is used: a stored run shows under which it was made."""
    settings = complete(settings)
    return replace(settings, options=asdict(method_options(settings.method, settings.options)))


def same_settings(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two described settings agree in all that both of them name.

    This is what makes a key of differences safe: a record made under other defaults is not taken.
    """
    first, second = flat(one), flat(other)
    return all(
        first[name] == second[name] for name in first.keys() & second.keys() if not _of_data(name)
    )


def data_digest(dataset: Dataset) -> str:
    """Digest of the values trained on, in single precision: the last bit differs by machine."""
    panel, digest = dataset.panel, hashlib.blake2b(digest_size=8)
    digest.update("\n".join(dataset.ids).encode())
    single = np.ascontiguousarray(panel.values, dtype="<f4")
    digest.update(single.tobytes())
    # A meter that counts up to billions moves by less than single precision can tell.
    lost = np.nanmax(np.abs(panel.values - single), axis=0, initial=0.0)
    if (lost > LOST * dataset.std).any():
        digest.update(np.ascontiguousarray(dataset.series, dtype="<f4").tobytes())
    place = (str(panel.start), panel.step_seconds, panel.timezone, dataset.offset)
    digest.update(
        str((*place, dataset.split.train, dataset.split.val, dataset.split.test)).encode()
    )
    if panel.coordinates is not None:
        digest.update(np.ascontiguousarray(panel.coordinates, dtype="<f4").tobytes())
    return digest.hexdigest()


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `section.key: value`."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        inner = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found
