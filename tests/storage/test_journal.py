"""States on disk that are written whole or in what changed: what is read is what was saved last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine
from fuels.errors import FuelsError
from fuels.methods.registry import METHODS
from fuels.storage.journal import Journal
from fuels.storage.run_folder import RunFolder
from helpers.small_federation import job_of, small_panel

CLIENTS = 20


def states(rounds: int, share: int = 2) -> list[tuple[dict[str, Any], np.ndarray]]:
    """Arrays after each round, and the rows that differ from the round before."""
    rng, found = np.random.default_rng(0), []
    rows = np.arange(CLIENTS)
    wide, small = rng.random((CLIENTS, 50)), rng.random(3)
    for _ in range(rounds):
        wide, small = wide.copy(), rng.random(3)
        wide[rows] = rng.random((len(rows), 50))
        found.append(({"sites/wide": wide, "other": small}, rows))
        rows = np.sort(rng.choice(CLIENTS, share, replace=False))
    return found


def save(journal: Journal, number: int, arrays: dict[str, Any], rows: np.ndarray) -> None:
    journal.save(number, arrays, {"round": number}, {"sites/wide": rows})


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_last(path: Path, arrays: dict[str, Any], number: int) -> None:
    read, facts = Journal(path).load()
    assert facts == {"round": number} and read.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)


def test_what_is_read_is_what_was_saved_last(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    journal = Journal(path)
    most = 0
    for number, (arrays, rows) in enumerate(states(25), start=1):
        save(journal, number, arrays, rows)
        assert_last(path, arrays, number)
        most = max(most, len(files(tmp_path)))
    assert most == 1 + 9  # a tenth changes, and a little besides: nine fit under the whole
    journal.delete()
    assert files(tmp_path) == []


def test_small_files_hold_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    journal = Journal(path)
    for number, (arrays, rows) in enumerate(states(3), start=1):
        save(journal, number, arrays, rows)
    assert files(tmp_path) == ["state-1.safetensors", "state-2.safetensors", path.name]
    assert (tmp_path / "state-2.safetensors").stat().st_size < 0.25 * path.stat().st_size


def test_much_that_changed_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    journal = Journal(path)
    for number, (arrays, rows) in enumerate(states(3, share=11), start=1):
        save(journal, number, arrays, rows)
        assert files(tmp_path) == [path.name]


def test_files_of_an_earlier_whole_are_no_part_of_the_next(tmp_path: Path) -> None:
    """As a kill leaves them between the new whole and their end."""
    path, made = tmp_path / "state.safetensors", states(4)
    journal = Journal(path)
    for number, (arrays, rows) in enumerate(made[:2], start=1):
        save(journal, number, arrays, rows)
    old = (tmp_path / "state-1.safetensors").read_bytes()
    save(Journal(path), 3, made[2][0], made[2][1])  # another process: whole
    (tmp_path / "state-1.safetensors").write_bytes(old)
    assert_last(path, made[2][0], 3)


def test_a_round_left_out_is_not_built_upon(tmp_path: Path) -> None:
    path, made = tmp_path / "state.safetensors", states(4)
    journal = Journal(path)
    save(journal, 1, *made[0])
    save(journal, 3, *made[2])  # what round 2 changed is not in the rows
    assert_last(path, made[2][0], 3)


def test_rounds_are_left_out_while_saving_would_take_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving takes 3 seconds and may take a tenth of the time: every 27 seconds between saves."""
    clock, path, made = [100.0], tmp_path / "state.safetensors", states(6)
    whole = Journal._save_whole

    def slow(self: Journal, *given: Any) -> None:
        clock[0] += 3.0
        whole(self, *given)

    monkeypatch.setattr("fuels.storage.journal.QUICK", 0.1)
    monkeypatch.setattr("fuels.storage.journal.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(Journal, "_save_whole", slow)
    journal, kept = Journal(path, share=0.1), []
    for number, (arrays, _) in enumerate(made, 1):
        journal.save(number, arrays, {"round": number}, {}, last=number == 6)
        kept.append(journal.load()[1]["round"])
        clock[0] += 14.0
    assert kept == [1, 1, 3, 3, 5, 6]  # 14 and 28 seconds after; the last one in any case


def test_what_changed_in_rounds_left_out_is_in_the_next_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path, made = [100.0], tmp_path / "state.safetensors", states(5, share=1)
    monkeypatch.setattr("fuels.storage.journal.QUICK", -1.0)
    monkeypatch.setattr("fuels.storage.journal.time.monotonic", lambda: clock[0])
    journal = Journal(path, share=0.1)
    save(journal, 1, *made[0])
    journal.took = 1000.0  # and yet a minute later the next one is due
    for number, (arrays, rows) in enumerate(made[1:], 2):
        clock[0] += 25.0
        save(journal, number, arrays, rows)
        saved = 1 if number < 4 else number  # after 75 seconds; that one took no time
        assert_last(path, made[saved - 1][0], saved)
    assert files(tmp_path) == ["state-1.safetensors", "state-2.safetensors", "state.safetensors"]


def test_a_damaged_small_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    journal = Journal(path)
    for number, (arrays, rows) in enumerate(states(2), start=1):
        save(journal, number, arrays, rows)
    small = tmp_path / "state-1.safetensors"
    content = bytearray(small.read_bytes())
    content[-3] ^= 1
    small.write_bytes(content)
    with pytest.raises(FuelsError, match=r"state-1.safetensors: damaged.*the round before, 1"):
        Journal(path).load()


@pytest.mark.parametrize("length", [0, 5, 40, -1])
def test_a_small_file_that_was_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "state.safetensors"
    journal = Journal(path)
    for number, (arrays, rows) in enumerate(states(3), start=1):
        save(journal, number, arrays, rows)
    small = tmp_path / "state-2.safetensors"
    small.write_bytes(small.read_bytes()[:length])
    with pytest.raises(FuelsError, match=r"state-2.safetensors: .*delete it.*the round before, 2"):
        Journal(path).load()
    small.unlink()
    assert_last(path, states(3)[1][0], 2)


def test_what_changed_is_not_held_in_memory(tmp_path: Path) -> None:
    """The rows of small files go into a copy on disk; the state's own file stays as it is."""
    path = tmp_path / "state.safetensors"
    journal = Journal(path)
    for number, (arrays, rows) in enumerate(states(3), start=1):
        save(journal, number, arrays, rows)
    before, names = path.read_bytes(), files(tmp_path)
    read, _ = Journal(path).load()
    assert path.read_bytes() == before and files(tmp_path) == names
    where = Path("/proc/self/maps")
    if where.exists():
        assert f"{path}.tmp (deleted)" in where.read_text()
    del read
    assert not where.exists() or f"{path}.tmp" not in where.read_text()


def test_a_damaged_file_of_an_earlier_whole_stands_in_nobodys_way(tmp_path: Path) -> None:
    path, made = tmp_path / "state.safetensors", states(4)
    journal = Journal(path)
    for number, (arrays, rows) in enumerate(made[:2], start=1):
        save(journal, number, arrays, rows)
    old = bytearray((tmp_path / "state-1.safetensors").read_bytes())
    old[-3] ^= 1
    save(Journal(path), 3, *made[2])
    (tmp_path / "state-1.safetensors").write_bytes(old)
    assert_last(path, made[2][0], 3)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_round_of_every_method_is_saved_whole(tmp_path: Path, method: str) -> None:
    """One client of six trains in a round: what is read equals all that the run knows."""
    job = job_of(
        method,
        small_panel(clients=6, holes=False),
        rounds=5,
        windows={"split": "9/3/3"},
        training={"rounds": 5, "selection": 0.17},
        options={"week": 1} if method == "fedda" else {},
    )
    folder = RunFolder(tmp_path / "run")
    folder.begin(job.settings, Engine())
    with job:
        for _ in range(5):
            done = job.loop.step()
            arrays, facts = job.loop.state()
            folder.save(done, arrays, facts)
            read, known = RunFolder(tmp_path / "run").journal.load()
            assert known["round"] == facts["round"] and read.keys() == arrays.keys()
            for name, array in arrays.items():
                np.testing.assert_array_equal(read[name], array, err_msg=name)
    steps = list((tmp_path / "run").glob("checkpoint-*"))
    assert steps or method != "fuels"
