"""The ledger: what was released, what it cost, and the noised messages themselves.

One line per release, with its noised message, is on disk (fsync) before anything is sent. So

- a release that was asked for before returns the same message, and is not charged again;
- a line that a kill or a power cut left incomplete was never sent: it is removed;
- what would exceed the budget is refused before any noise is drawn.

The loss of a release counts for the units whose values it covers: hours and days of disjoint spans
do not add up, those of overlapping spans do. For whole clients, everything adds up. The budget
holds for the unit with the largest loss.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.errors import FuelsError
from fuels.privacy import gaussian
from fuels.privacy.accountant import TOLERANCE, check, epsilon_of, loss_for
from fuels.privacy.sensitivity import SECONDS, Relation, Unit

FORMAT = 1


@dataclass(frozen=True)
class Budget:
    """What a ledger may spend, for each unit of each client."""

    epsilon: float
    delta: float
    unit: Unit
    relation: Relation

    def facts(self) -> dict[str, Any]:
        return {"ledger": FORMAT, **asdict(self)}


@dataclass(frozen=True)
class Release:
    """One noised message."""

    run: str  # whose statistics these are: another run releases again
    name: str
    first: int  # seconds since 1970, of the first value that it uses
    last: int  # of the step after the last one
    sensitivity: float  # before rounding
    multiplier: float  # standard deviation of the noise, per sensitivity
    shape: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.run, self.name, self.first, self.last

    @property
    def numbers(self) -> int:
        return int(np.prod(self.shape))

    @property
    def grid(self) -> float:
        return gaussian.grid(self.sensitivity)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on each number of the sum."""
        steps = gaussian.steps_of_noise(self.sensitivity, self.multiplier, self.numbers)
        return steps * self.grid

    @property
    def loss(self) -> float:
        """(sensitivity / noise)^2; the noise is in proportion to the sensitivity with rounding."""
        return self.multiplier**-2

    def rounded(self, contribution: Floats) -> Integers:
        """What a client adds, in steps of the grid."""
        if contribution.shape != self.shape or not np.isfinite(contribution).all():
            raise FuelsError(
                f"{self.name}: a contribution has shape {contribution.shape}, or entries that are"
                f" not finite; {self.shape} is required"
            )
        return np.rint(contribution / self.grid).astype(np.int64)

    def noise(self, sites: int = 1, colluding: int = 0) -> Integers:
        """The noise of one of several sites, in steps of the grid."""
        whole = gaussian.steps_of_noise(self.sensitivity, self.multiplier, self.numbers)
        own = int(np.ceil(gaussian.share_of_noise(whole, sites, colluding)))
        return gaussian.draw(own, self.numbers).reshape(self.shape)


@dataclass(frozen=True)
class Entry:
    """A release as the ledger keeps it."""

    release: Release
    message: Integers  # in steps of the grid
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> Floats:
        return np.asarray(self.message * self.release.grid, dtype=np.float64)

    def line(self) -> bytes:
        packed = zlib.compress(self.message.astype("<i8").tobytes())
        facts = {
            **asdict(self.release),
            "sigma": self.release.sigma,
            "about": dict(self.about),
            "message": base64.b64encode(packed).decode(),
        }
        return _signed(facts)

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> Entry:
        own = {name: facts[name] for name in Release.__dataclass_fields__}
        release = Release(**{**own, "shape": tuple(own["shape"])})
        data = zlib.decompress(base64.b64decode(facts["message"]))
        return cls(release, np.frombuffer(data, "<i8").reshape(release.shape), facts["about"])


class Ledger:
    """The releases of one site or one machine; without a path, only in memory.

    The epsilon of an `owner`'s ledger may change: it is the one that its config states. Messages
    name the owner, because they are sent to others.
    """

    def __init__(self, budget: Budget, path: Path | None = None, owner: str = "") -> None:
        check(budget.epsilon, budget.delta)
        self.budget, self.path, self.owner = budget, path, owner
        self.entries: dict[tuple[str, str, int, int], Entry] = {}
        if path is not None and path.exists():
            self.create()

    @property
    def place(self) -> str:
        """What messages call it."""
        return self.owner or ("this run" if self.path is None else str(self.path))

    @classmethod
    def opened(cls, path: Path) -> Ledger:
        """A ledger with the budget that its file states."""
        with path.open("rb") as file:
            first = file.readline()
        if not first.strip(b"\0\n"):  # killed before the budget was written: nothing was released
            raise FuelsError(
                f"{path}: this ledger is empty; if it is new, remove it and create it again with"
                " fuels privacy new, otherwise restore it from a backup"
            )
        facts = _parsed(path, first, 1)
        unit, relation = Unit(facts["unit"]), Relation(facts["relation"])
        return cls(Budget(facts["epsilon"], facts["delta"], unit, relation), path)

    def find(self, run: str, name: str) -> list[Entry]:
        """The releases of this name, by time."""
        found = (e for e in self.entries.values() if (e.release.run, e.release.name) == (run, name))
        return sorted(found, key=lambda entry: (entry.release.first, entry.release.last))

    def release(
        self,
        release: Release,
        contributions: Iterable[Floats],
        about: Mapping[str, Any] | None = None,
        *,
        sites: int = 1,
        colluding: int = 0,
        here: int = 1,
    ) -> Entry:
        """The noised sum of the contributions; the stored one if it was released before.

        Of several `sites`, each adds its share of the noise to the sum over its own clients; `here`
        says how many of them this sum is for.
        """
        with self._open() as file:
            if (known := self.entries.get(release.key)) is not None:
                return known
            self._refuse_excess(release)
            total = np.zeros(release.shape, dtype=np.int64)
            for contribution in contributions:
                total += release.rounded(contribution)
            for _ in range(here):
                total += release.noise(sites, colluding)
            entry = Entry(release, total, about or {})
            if file is not None:
                self._append(file, entry.line())
            self.entries[release.key] = entry
        return entry

    def keep(self, entries: Iterable[Entry]) -> None:
        """Write down what others have released: totals that a site has received."""
        with self._open() as file:
            for entry in entries:
                if entry.release.key not in self.entries:
                    if file is not None:
                        self._append(file, entry.line())
                    self.entries[entry.release.key] = entry

    def create(self) -> None:
        """Write the budget, or read what other processes have released."""
        with self._open():
            pass

    # -- what has been spent -------------------------------------------------------------------

    def loss(self, more: Iterable[Release] = ()) -> float:
        """The largest loss of any unit, with `more` releases."""
        return self.loss_of([*(entry.release for entry in self.entries.values()), *more])

    def loss_of(self, releases: Sequence[Release]) -> float:
        """The largest loss of any unit in some releases."""
        if self.budget.unit is Unit.CLIENT:
            return sum(release.loss for release in releases)
        length, changes = SECONDS[self.budget.unit], dict[int, float]()
        for release in releases:
            begin, end = release.first // length, -(-release.last // length)
            changes[begin] = changes.get(begin, 0.0) + release.loss
            changes[end] = changes.get(end, 0.0) - release.loss
        largest = loss = 0.0
        for unit in sorted(changes):
            loss += changes[unit]
            largest = max(largest, loss)
        return largest

    @property
    def epsilon(self) -> float:
        """What has been spent so far, at the budget's delta."""
        return epsilon_of(self.loss(), self.budget.delta)

    def affords(self, *releases: Release) -> bool:
        allowed = loss_for(self.budget.epsilon, self.budget.delta)
        return self.loss(releases) <= allowed * (1 + TOLERANCE)

    def _refuse_excess(self, release: Release) -> None:
        if not self.affords(release):
            would = epsilon_of(self.loss([release]), self.budget.delta)
            raise FuelsError(
                f"{self.place}: the privacy budget of epsilon {self.budget.epsilon:g} per"
                f" {self.budget.unit} does not allow releasing '{release.name}' again: together"
                f" with {self.epsilon:.3g}, spent already, it would be {would:.3g}"
            )

    # -- on disk -------------------------------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[BinaryIO | None]:
        """The ledger's file, locked and read; None in memory."""
        if self.path is None:
            yield None
            return
        try:
            new = not self.path.exists()
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if new:
                    sync_folder(self.path.parent)
                self._read(file)
                yield file
        except OSError as error:
            raise FuelsError(
                f"{self.path}: the privacy ledger cannot be used ({error.strerror or error});"
                " nothing was sent"
            ) from None

    def _read(self, file: BinaryIO) -> None:
        """Read all lines, and remove one that was never completed."""
        file.seek(0)
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1].split(b"\0", 1)[0]  # a power cut may leave zeros
        whole = whole[: whole.rfind(b"\n") + 1]
        if len(whole) < len(text):
            file.truncate(len(whole))
            os.fsync(file.fileno())
        assert self.path is not None
        lines = [_parsed(self.path, line, n) for n, line in enumerate(whole.splitlines(), 1)]
        if not lines:
            self._append(file, _signed(self.budget.facts()))
            return
        self._refuse_other(lines[0])
        entries = [Entry.parse(facts) for facts in lines[1:]]
        self.entries = {entry.release.key: entry for entry in entries}

    def _refuse_other(self, facts: Mapping[str, Any]) -> None:
        mine = self.budget.facts()
        for name, value in mine.items():
            if name == "epsilon" and self.owner:
                continue
            if facts.get(name) != value:
                raise FuelsError(
                    f"{self.place}: this ledger has {name} {facts.get(name)}, not {value}; a budget"
                    " is fixed when the ledger begins"
                )

    def _append(self, file: BinaryIO, line: bytes) -> None:
        end = file.seek(0, os.SEEK_END)
        try:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def sync_folder(folder: Path) -> None:
    """Make a new file's name survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _parsed(path: Path, line: bytes, number: int) -> dict[str, Any]:
    """The facts of a line, whose checksum is right."""
    try:
        facts = json.loads(line)
        valid = facts.pop("sha256") == _digest(facts)
    except (ValueError, KeyError, AttributeError, TypeError):
        valid = False
    if not valid:
        raise FuelsError(
            f"{path}, line {number}: damaged, so what has been released is not known; restore the"
            " file from a backup, or start a new run with a new ledger"
        )
    return dict(facts)


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _signed(facts: Mapping[str, Any]) -> bytes:
    return json.dumps({**facts, "sha256": _digest(facts)}, sort_keys=True).encode() + b"\n"
