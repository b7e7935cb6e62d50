"""The ledger: what it charges, what it refuses, and what a kill leaves behind."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.privacy import ledger as module
from fuels.privacy.ledger import Budget, Ledger, Release
from fuels.privacy.sensitivity import Relation, Unit

HOUR = 3600
BUDGET = Budget(4.0, 1e-5, Unit.HOUR, Relation.REMOVED)
RELEASES = (
    Release("run", "mean day", 0, 48 * HOUR, 2.5, 3.0, (4,)),
    Release("run", "live mean", 0, 48 * HOUR, 2.0, 3.0, (5,)),
    Release("run", "live mean", 48 * HOUR, 49 * HOUR, 2.0, 3.0, (1,)),
)


class Killed(BaseException):
    """The process is gone: nothing catches this."""


def ones(release: Release) -> list[np.ndarray]:
    return [np.ones(release.shape), 2 * np.ones(release.shape)]


def spend(ledger: Ledger) -> list[np.ndarray]:
    return [ledger.release(release, ones(release)).message for release in RELEASES]


def test_a_sum_has_its_noise_and_is_sent_again_as_it_was(tmp_path: Path) -> None:
    release = Release("run", "sum", 0, HOUR, 2.0, 3.0, (2000,))
    ledger = Ledger(BUDGET, tmp_path / "ledger")
    entry = ledger.release(release, ones(release), {"clients": ["a"]})
    assert entry.values.mean() == pytest.approx(3.0, abs=5 * 6.0 / np.sqrt(2000))
    assert entry.values.std() == pytest.approx(6.0, rel=0.1)
    again = Ledger(BUDGET, tmp_path / "ledger").release(release, [np.zeros(2000)])
    np.testing.assert_array_equal(entry.message, again.message)
    assert again.about == {"clients": ["a"]}
    assert len(Ledger(BUDGET, tmp_path / "ledger").entries) == 1


def test_what_would_exceed_the_budget_is_refused_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(BUDGET, path)
    spend(ledger)
    before, spent = path.read_bytes(), ledger.epsilon
    expensive = Release("run", "statistics", 0, 48 * HOUR, 1.0, 1.1, (3,))
    with pytest.raises(FuelsError, match=r"epsilon 4 per hour does not allow .* 'statistics'"):
        ledger.release(expensive, [])
    assert (path.read_bytes(), ledger.epsilon) == (before, spent)
    later = Release("run", "statistics", 49 * HOUR, 90 * HOUR, 1.0, 1.1, (3,))
    ledger.release(later, [])  # other hours: nothing adds up
    assert ledger.epsilon == pytest.approx(3.91, abs=0.1)


def test_everything_adds_up_for_a_client_and_overlaps_for_a_day() -> None:
    loss = {}
    for unit in Unit:
        ledger = Ledger(Budget(8.0, 1e-5, unit, Relation.REMOVED))
        spend(ledger)
        loss[unit] = ledger.loss() * 9
    assert loss == pytest.approx({Unit.HOUR: 2, Unit.DAY: 2, Unit.CLIENT: 3})
    same_day = Release("run", "live mean", 49 * HOUR, 50 * HOUR, 2.0, 3.0, (1,))
    ledger = Ledger(Budget(8.0, 1e-5, Unit.DAY, Relation.REMOVED))
    for release in (*RELEASES, same_day, Release("run", "x", 50 * HOUR, 51 * HOUR, 1, 3.0, (1,))):
        ledger.release(release, [])
    assert ledger.loss() * 9 == pytest.approx(3)  # three releases in the third day


def test_a_file_cut_at_any_byte_charges_what_was_sent_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "fsync", lambda handle: None)  # slow
    path = tmp_path / "ledger"
    sent = spend(Ledger(BUDGET, path))
    whole, full = path.read_bytes(), Ledger(BUDGET, path).loss()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        for tail in (b"", b"\0\0") if size % 13 == 0 else (b"",):
            path.write_bytes(whole[:size] + tail)
            ledger = Ledger(BUDGET, path)
            complete = sum(end <= size for end in ends) - 1  # the first line is the budget
            assert len(ledger.entries) == max(complete, 0)
            assert ledger.loss() <= full
            if size % 97 == 0 or size in ends:
                messages = spend(ledger)
                for i, message in enumerate(messages):
                    assert np.array_equal(message, sent[i]) == (i < complete)
                assert Ledger(BUDGET, path).loss() == pytest.approx(full)


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_write_loses_nothing_that_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    full, sync = Ledger(BUDGET), os.fsync
    spend(full)
    for point in range(1, 12):
        path, calls, received = tmp_path / f"{after}-{point}", [0], list[np.ndarray]()

        def dying(handle: int, calls: list[int] = calls, point: int = point) -> None:
            calls[0] += 1
            if calls[0] == point and not after:
                raise Killed
            sync(handle)
            if calls[0] == point:
                raise Killed

        monkeypatch.setattr(module.os, "fsync", dying)
        try:
            ledger = Ledger(BUDGET, path)
            for release in RELEASES:
                received.append(ledger.release(release, ones(release)).message)
        except Killed:
            pass
        monkeypatch.setattr(module.os, "fsync", sync)
        again = spend(Ledger(BUDGET, path))
        for first, second in zip(received, again, strict=False):
            np.testing.assert_array_equal(first, second)
        assert Ledger(BUDGET, path).loss() == pytest.approx(full.loss())
    assert len(received) == len(RELEASES)  # the last point is beyond the last write


def test_two_processes_share_one_budget(tmp_path: Path) -> None:
    one, other = (Ledger(BUDGET, tmp_path / "ledger") for _ in range(2))
    first = one.release(RELEASES[0], ones(RELEASES[0]))
    np.testing.assert_array_equal(
        other.release(RELEASES[0], ones(RELEASES[0])).message, first.message
    )
    assert other.loss() == one.loss() == pytest.approx(1 / 9)


def test_a_damaged_line_and_another_budget_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    spend(Ledger(BUDGET, path))
    with pytest.raises(FuelsError, match=r"this ledger has epsilon 4\.0, not 8"):
        Ledger(Budget(8.0, 1e-5, Unit.HOUR, Relation.REMOVED), path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"mean day", b"mean dax") + lines[2])
    with pytest.raises(FuelsError, match=r"line 2: damaged"):
        Ledger(BUDGET, path)
    with pytest.raises(FuelsError, match="cannot be used"):
        Ledger(BUDGET, tmp_path / "no" / "folder").release(RELEASES[0], [])


def test_an_empty_file_is_no_ledger_whose_budget_could_be_read(tmp_path: Path) -> None:
    """A kill after the file was created and before the budget was written leaves it empty."""
    path = tmp_path / "ledger"
    for text in (b"", b"\0\0\0"):
        path.write_bytes(text)
        with pytest.raises(FuelsError, match="this ledger is empty; if it is new, remove it"):
            Ledger.opened(path)
    assert Ledger(BUDGET, path).loss() == 0  # a run that knows its budget writes it


def test_a_full_disk_sends_nothing_and_leaves_a_ledger_that_goes_on(tmp_path: Path) -> None:
    path, limit = tmp_path / "ledger", resource.getrlimit(resource.RLIMIT_FSIZE)
    ledger = Ledger(BUDGET, path)
    first = ledger.release(RELEASES[0], ones(RELEASES[0]))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, limit[1]))
        with pytest.raises(FuelsError, match=r"cannot be used .* nothing was sent"):
            ledger.release(RELEASES[1], ones(RELEASES[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert ledger.loss() == Ledger(BUDGET, path).loss() == pytest.approx(1 / 9)
    again = spend(Ledger(BUDGET, path))
    np.testing.assert_array_equal(again[0], first.message)
