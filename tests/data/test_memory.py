"""Converting raw records: memory does not grow with the number of files, and nothing is left."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fuels.data import readers, spool, writers
from fuels.data.panel import Panel
from fuels.data.readers import PanelOptions, read_activities, read_panel
from fuels.data.spool import gather, gather_in_file, open_spool, rows_of
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from helpers.panels import make_panel

MIDNIGHT = 1383260400000  # 1 November 2013 00:00 in Rome
CELLS = 1000


def write_days(folder: Path, days: int, cells: int = CELLS) -> Path:
    """A file a day; every cell has a record in the first and in the last ten minutes."""
    folder.mkdir()
    for day in range(days):
        lines = [
            f"{cell}\t{MIDNIGHT + (day * 144 + tick) * 600_000}\t39\t\t\t\t\t{cell + day}\n"
            for cell in range(1, cells + 1)
            for tick in (0, 143)
        ]
        name = f"sms-call-internet-mi-{np.datetime64('2013-11-01') + day}.txt"
        (folder / name).write_text("".join(lines), encoding="ascii")
    return folder


def convert(folder: Path, out: Path) -> Panel:
    options = PanelOptions(resample="10min", how="sum")
    found = read_activities(folder, ("net",), options, spool_folder=out.parent)
    panel = next(panel for _, panel in found)
    write_panel(panel, out, overwrite=True)
    return panel


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_BAND_VALUES", 1 << 14)
    monkeypatch.setattr(writers, "_BATCH_VALUES", 1 << 14)
    monkeypatch.setattr(writers, "_BATCH_ROWS", 1 << 14)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # files in parallel would blur the peak


@pytest.mark.usefixtures("small_pieces")
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    peaks: list[int] = []
    for days in (2, 2, 12):  # the first only loads what is loaded once
        folder = write_days(tmp_path / str(len(peaks)), days)
        tracemalloc.start()
        panel = convert(folder, tmp_path / "panel.npz")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert panel.values.nbytes == 12 * 144 * CELLS * 8  # ten more files hold 11.5 MB more
    assert peaks[2] - peaks[1] < 0.5e6


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", ["a.npz", "a.csv", "a.parquet", "w.csv", "w.parquet"])
def test_processing_in_bands_gives_the_same_panel(tmp_path: Path, name: str) -> None:
    folder = write_days(tmp_path / "raw", 3, cells=40)
    whole = read_panel(folder, resample="10min", how="sum")
    assert whole.values[[0, 1, 143, 144]][:, 6].tolist() == [7, 0, 7, 8]
    found = read_activities(
        folder, ("net",), PanelOptions(resample="10min", how="sum"), spool_folder=tmp_path
    )
    for _, panel in found:
        write_panel(panel, tmp_path / name, layout="wide" if name[0] == "w" else "long")
    again = read_panel(tmp_path / name)
    assert again.ids == whole.ids and again.start == whole.start
    np.testing.assert_array_equal(again.values, whole.values)


@pytest.mark.usefixtures("small_pieces")
def test_options_apply_to_bands_as_to_a_whole_panel(tmp_path: Path) -> None:
    folder = write_days(tmp_path / "raw", 3, cells=300)
    options = {"missing": "7", "resample": "1h", "how": "mean", "start": "2013-11-02"}
    ids = ["300", "7", "5"]
    panel = read_panel(folder, ids=ids, **options)  # type: ignore[arg-type]
    options = PanelOptions(ids=ids, **options)
    found = read_activities(folder, ("net",), options, spool_folder=tmp_path)
    spooled = next(p for _, p in found)
    assert panel.ids == spooled.ids == ("5", "7", "300")
    # Cell 5 counts 7 on the third day only, cell 7 on the first: both are left out of the means.
    assert panel.values[0].tolist() == pytest.approx([1, 8 / 6, 301 / 6])
    assert panel.values[24].tolist() == pytest.approx([0, 1.5, 302 / 6])
    assert panel.notes == spooled.notes and "2 values equal to 7 were marked" in panel.notes[-1]
    np.testing.assert_array_equal(spooled.values, panel.values)
    with pytest.raises(FuelsError, match="no client 999"):
        next(read_activities(folder, ("net",), PanelOptions(ids=["999"]), spool_folder=tmp_path))


def test_an_error_leaves_no_files(tmp_path: Path) -> None:
    folder = write_days(tmp_path / "raw", 2, cells=3)
    (folder / "sms-call-internet-mi-copy.txt").write_bytes(next(folder.iterdir()).read_bytes())
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(FuelsError, match="also in another file"):
        convert(folder, out / "panel.npz")
    assert not list(out.iterdir())


def test_mapped_values_do_not_stay_in_memory(tmp_path: Path) -> None:
    def mapped_kb() -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))

    if not Path("/proc/self/status").exists():
        pytest.skip("memory is read from /proc, which this system has not")
    bands = [
        Panel(np.full((4096, 64), float(i)), tuple(f"{i}-{j}" for j in range(64)), *CLOCK)
        for i in range(32)
    ]
    ids = [client for band in bands for client in band.ids]
    panel = gather_in_file(bands, ids, tmp_path)
    before = mapped_kb()
    total = sum(rows_of(panel.values, slice(i, i + 512)).sum() for i in range(0, 4096, 512))
    assert total == sum(range(32)) * 4096 * 64
    assert mapped_kb() - before < 16_000  # of the 64 MB
    np.testing.assert_array_equal(gather(bands, ids).values, panel.values)


CLOCK = np.datetime64("2024-01-01T00:00:00"), np.timedelta64(3600, "s")


def test_a_failed_temporary_file_is_reported(tmp_path: Path) -> None:
    sentence = "a temporary file could not be written there"
    with pytest.raises(FuelsError, match=f"nowhere: {sentence}"), open_spool(tmp_path / "nowhere"):
        pass
    full = pytest.raises(FuelsError, match=f"here: {sentence} .No space left")
    with full, Path("/dev/full").open("r+b", buffering=0) as stream:
        spool.Spool("here", stream).put(np.zeros(3))


@pytest.mark.usefixtures("small_pieces")
def test_a_parquet_table_too_wide_for_bounded_memory_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_MOST_CHUNKS", 100)
    panel = make_panel(clients=60, days=20)  # 28,800 values: two batches of 60 columns
    with pytest.raises(FuelsError, match=r"480 rows and 60 columns .* omit --layout wide"):
        write_panel(panel, tmp_path / "p.parquet", layout="wide")
    assert not list(tmp_path.iterdir())
    write_panel(panel, tmp_path / "p.csv", layout="wide")
    write_panel(panel.take(range(40)), tmp_path / "p.parquet", layout="wide")


LIMITED = """
import resource, sys
from pathlib import Path
from helpers.panels import make_panel
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
panel = make_panel(clients=50, days=100)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    write_panel(panel, Path(sys.argv[1]), overwrite=True)
except FuelsError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize("name", ["p.parquet", "p.csv", "p.npz"])
def test_a_full_disk_is_reported_and_keeps_the_old_file(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    write_panel(make_panel(clients=2, days=3), target)
    old = target.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(target)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "refused:" in done.stderr and f"{name}: cannot be written" in done.stderr
    assert target.read_bytes() == old and list(tmp_path.iterdir()) == [target]
