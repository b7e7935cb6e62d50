"""`fuels forecast` every hour and `fuels retrain`: short files, damage, full disks, two at once."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest

from fuels.storage.panels import read_panel_file
from helpers.commands import FUELS, Fuels
from helpers.panels import make_panel

VALUES = Path("r/live/values.safetensors")
DAYS = 12  # of the run, out of 14


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the first days of four clients."""
    folder = tmp_path_factory.mktemp("made")
    rows(0, DAYS * 24).write_csv(folder / "old.csv")
    words = ("run", "--data", "old.csv", "--split", "9/1/2", "--out", "r", "--no-plots")
    small = ("--set", "model.hidden=4", "--rounds", "1", "--threads", "1")
    subprocess.run([*FUELS, *words, *small], cwd=folder, check=True, capture_output=True)
    return folder / "r"


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A copy in the working directory, without the data of the run."""
    subprocess.run(["cp", "-r", str(made), str(tmp_path / "r")], check=True)
    return tmp_path


def rows(first: int, last: int, *clients: str) -> pl.DataFrame:
    """Some hours, of some clients, as a long table."""
    panel = make_panel(clients=4, days=14)
    frames = [
        pl.DataFrame(
            {
                "client": client,
                "time": panel.times[first:last].astype("datetime64[ms]"),
                "value": panel.values[first:last, i].round(3),
            }
        )
        for i, client in enumerate(panel.ids)
        if client in (clients or panel.ids)
    ]
    return pl.concat(frames)


def forecast(fuels: Fuels, *words: str) -> tuple[str, str]:
    code, out, err = fuels("forecast", "r", *words)
    assert code == 0, err
    return out, err


def give(fuels: Fuels, frame: pl.DataFrame, *words: str) -> tuple[str, str]:
    frame.write_csv("new.csv")
    return forecast(fuels, "--data", "new.csv", *words)


def test_one_hour_of_one_client_is_enough(fuels: Fuels, here: Path) -> None:
    now = DAYS * 24
    _, err = give(fuels, rows(now, now + 1, "c2"))
    assert "the newest value of 3 clients (c0, c1, c3) is missing" in err
    out, err = give(fuels, rows(now, now + 1, "c0", "c1", "c3"))
    assert "3 late values of 3 clients (c0, c1, c3) at 2024-01-13 00:00: learned" in err
    whole, err = give(fuels, rows(0, now + 1), "--forget")
    assert out == whole and "late" not in err
    skipped = pl.concat([rows(now + 1, now + 2), rows(now + 3, now + 4)])  # no two hours in a row
    out, _ = give(fuels, skipped)
    found = pl.read_csv(out.encode(), try_parse_dates=True)["time"].min()
    assert str(found) == "2024-01-13 04:00:00"


def test_old_values_are_inputs_and_revised_ones_count(fuels: Fuels, here: Path) -> None:
    now = DAYS * 24
    before, _ = forecast(fuels)
    old = rows(now - 24 * 8, now - 24 * 8 + 1).with_columns(pl.col("value") + 5)
    _, err = give(fuels, old)
    assert "4 late or revised values of 4 clients" in err
    assert "over seven days old, so inputs only" in err
    _, err = give(fuels, rows(now - 1, now, "c1").with_columns(pl.col("value") + 5))
    assert "1 revised value of 1 client (c1) at 2024-01-12 23:00: replaced and learned" in err
    after, _ = forecast(fuels)
    assert after != before
    panel, _, _ = read_panel_file(VALUES)
    assert panel.values[now - 1, 1] == rows(now - 1, now, "c1")["value"][0] + 5
    _, err = give(fuels, rows(now - 1, now, "c1"))
    assert "1 revised value" in err


def test_a_wrong_date_changes_nothing(fuels: Fuels, here: Path) -> None:
    now = DAYS * 24
    expected, _ = give(fuels, rows(now, now + 1))
    rows(now, now + 1).with_columns(pl.col("time").dt.offset_by("30y")).write_csv("new.csv")
    code, _, err = fuels("forecast", "r", "--data", "new.csv")
    assert code == 1 and "is a date wrong?" in err and "Traceback" not in err
    assert forecast(fuels)[0] == expected


def test_a_full_disk_loses_nothing(
    fuels: Fuels, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = DAYS * 24
    give(fuels, rows(now, now + 1))
    rows(now + 1, now + 3).write_csv("new.csv")
    kept = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:
        full(patched)
        code, out, err = fuels("forecast", "r", "--data", "new.csv")
    assert code == 1 and len(out.splitlines()) == 5  # forecasts are made all the same
    said = [line for line in err.splitlines() if "No space left" in line]
    assert len(said) == 1 and "give the new values again with the next forecast" in said[0]
    assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == kept
    assert forecast(fuels, "--data", "new.csv")[0] == out


def full(patched: pytest.MonkeyPatch) -> None:
    """Every file is cut off in the middle."""

    def fsync(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    patched.setattr("fuels.storage.checkpoint.os.fsync", fsync)


@pytest.mark.parametrize("name", ["learned.safetensors", "live/values.safetensors", "state"])
def test_a_damaged_file_is_noticed(fuels: Fuels, here: Path, name: str) -> None:
    now = DAYS * 24
    give(fuels, rows(now, now + 30))
    expected, _ = forecast(fuels)
    paths = list(Path("r/live").glob("state-*")) if name == "state" else [Path("r") / name]
    for path in paths:
        content = bytearray(path.read_bytes())
        content[-9] ^= 1
        path.write_bytes(content)
    if name.startswith("live"):
        code, _, err = fuels("forecast", "r")
        assert code == 1 and "values.safetensors: damaged" in err and "--forget" in err
        assert give(fuels, rows(now, now + 30), "--forget")[0] == expected
        return
    found, err = forecast(fuels)
    assert found == expected and ("is learned again" in err) == (name != "state")
    late = rows(now + 29, now + 30, "c1").with_columns(pl.col("value") + 1)
    changed, _ = give(fuels, late)
    whole = pl.concat([rows(now, now + 30), late]).unique(["client", "time"], keep="last")
    assert give(fuels, whole, "--forget")[0] == changed


def test_two_at_once_wait_for_each_other(fuels: Fuels, here: Path) -> None:
    now = DAYS * 24
    rows(now, now + 1).write_csv("new.csv")
    with Path("r/models.safetensors").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [*FUELS, "forecast", "r", "--data", "new.csv"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "another forecast of r is running: waiting" in line
        time.sleep(0.2)
        assert process.poll() is None and not VALUES.exists()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and len(out.splitlines()) == 5
    assert forecast(fuels)[0] == out


def test_retraining_uses_everything_that_is_remembered(fuels: Fuels, here: Path) -> None:
    now = DAYS * 24
    give(fuels, rows(now, now + 24))
    rows(now + 24, now + 48).write_csv("new.csv")
    before = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    code, _, err = fuels("retrain", "r", "--data", "new.csv", "--no-plots", "--threads", "1")
    assert code == 0, err
    assert "training on 336 steps of 4 clients from 2024-01-01 00:00 to 2024-01-14 23:00" in err
    assert "split 11/1/2 in place of 9/1/2" in err and "fuels forecast r-001" in err
    assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == before
    config = Path("r-001/config.toml").read_text()
    assert 'split = "11/1/2"' in config and "hidden = 4" in config
    values = pl.read_parquet("r-001/data.parquet").sort("client", "time")["value"]
    assert values.to_list() == rows(0, now + 48).sort("client", "time")["value"].to_list()
    code, out, err = fuels("forecast", "r-001")
    assert code == 0 and len(out.splitlines()) == 5, err
    code, _, err = fuels("retrain", "r", "--out", "r")
    assert code == 1 and "r is not empty" in err
