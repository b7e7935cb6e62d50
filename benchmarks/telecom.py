"""How fast, and in how much memory, raw Telecom Italia records become a panel.

    python benchmarks/telecom.py [--megabytes 200] [--days 2] [--json]

Writes realistic records (several country codes per cell and ten minutes, about 70 bytes each, in
the order of the real files: by cell, then time) into a temporary folder, reads them in a fresh
process with `telecom_panels` (all three activities in one pass) and prints MB/s and peak memory.
The first figure includes loading the compiled loop; the second is a further pass in the same
process. The files were just written, so they come from the page cache and not from the disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

FIRST_MS = 1_383_260_400_000  # 1 November 2013 00:00 in Rome
INTERVALS = 144
# Country code: share of cells and intervals with a record, share of its fields that are filled.
COUNTRIES = {
    0: (0.75, (0.9, 0.1, 0.3, 0.4, 0.02)),
    39: (1.0, (0.95, 0.9, 0.95, 0.95, 1.0)),
    33: (0.25, (0.4, 0.3, 0.2, 0.3, 0.5)),
    46: (0.3, (0.4, 0.3, 0.2, 0.3, 0.5)),
    49: (0.4, (0.3, 0.1, 0.1, 0.1, 0.8)),
}
BYTES_PER_CELL_AND_DAY = 30_000  # measured on files made by write_day


def write_day(folder: Path, day: int, cells: int, seed: int = 0) -> int:
    """Write the records of one day and return the size of the file."""
    rng = np.random.default_rng([seed, day])
    cell = np.repeat(np.arange(1, cells + 1), INTERVALS)
    start = FIRST_MS + day * 86_400_000
    moment = np.tile(start + 600_000 * np.arange(INTERVALS), cells)
    tables = []
    for code, (share, filled) in COUNTRIES.items():
        rows = np.flatnonzero(rng.random(len(cell)) < share)
        columns = {"cell": cell[rows], "time": moment[rows], "code": np.full(len(rows), code)}
        for number, part in enumerate(filled):
            amount = rng.gamma(0.6, 10.0 if number == 4 else 0.5, len(rows))
            columns[f"v{number}"] = np.where(rng.random(len(rows)) < part, amount, np.nan)
        tables.append(pl.DataFrame(columns).fill_nan(None))
    records = pl.concat(tables).filter(pl.any_horizontal(pl.col("^v.$").is_not_null()))
    path = folder / f"sms-call-internet-mi-{np.datetime64('2013-11-01') + day}.txt"
    records.sort("cell", "time", "code").write_csv(path, separator="\t", include_header=False)
    return path.stat().st_size


def read(folder: Path) -> dict[str, float]:
    """Read the folder twice in this process and measure."""
    from fuels.data.telecom import telecom_panels

    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    base = _peak_mb()
    figures = {"MB": size, "base MB": base}
    for label in ("first pass", "further pass"):
        clock, cpu = time.perf_counter(), time.process_time()
        cells = sum(panel.values.size for _, panel in telecom_panels(folder))
        figures[f"MB/s, {label}"] = size / (time.perf_counter() - clock)
        figures[f"MB per core second, {label}"] = size / (time.process_time() - cpu)
    figures["values"] = cells
    figures["peak MB"] = _peak_mb()
    return figures


def _peak_mb() -> float:
    """Peak memory of this process; getrusage would count the parent's before the start too."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this benchmark reads peak memory from /proc and needs Linux")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--days", type=int, default=2, help="number of files")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # the measuring process
    options = parser.parse_args()
    if options.folder is not None:
        print(json.dumps(read(options.folder)))
        return
    cells = max(1, round(options.megabytes * 1e6 / options.days / BYTES_PER_CELL_AND_DAY))
    with tempfile.TemporaryDirectory() as name:
        for day in range(options.days):
            write_day(Path(name), day, cells)
        command = [sys.executable, __file__, "--folder", name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = {"files": options.days, "cells": cells, **json.loads(printed)}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for label, figure in figures.items():
        print(f"{label:36} {figure:12,.0f}")


if __name__ == "__main__":
    main()
