"""How fast, and in how much memory, CSV files are described.

    python benchmarks/tables.py [--clients 1000] [--hours 6000] [--json]

The same hourly values, once with plain numbers and ISO times and once as a European spreadsheet
writes them (semicolons, decimal commas, 31.12.2024). Every line is one `fuels data describe` in a
fresh process; the files were just written, so they come from the page cache and not from the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl


def write_files(folder: Path, clients: int, hours: int) -> list[Path]:
    """The same table in two ways of writing."""
    rng = np.random.default_rng(0)
    start = np.datetime64("2023-01-01T00:00:00", "ms")
    cycle = 50 + 40 * np.sin(2 * np.pi * np.arange(hours) / 24)
    values = cycle[:, None] * rng.uniform(0.5, 2, clients) + rng.gamma(2, 3, (hours, clients))
    table = pl.DataFrame(
        {
            "client": np.repeat([f"cell-{i:04d}" for i in range(clients)], hours),
            "time": np.tile(start + np.arange(hours) * np.timedelta64(3600, "s"), clients),
            "value": values.T.ravel().round(4),
        }
    )
    plain, european = folder / "plain.csv", folder / "european.csv"
    table.write_csv(plain, datetime_format="%Y-%m-%d %H:%M:%S")
    table.write_csv(european, datetime_format="%d.%m.%Y %H:%M", separator=";", decimal_comma=True)
    return [plain, european]


def measure(file: Path) -> dict[str, Any]:
    """Time and peak memory of one description."""
    command = [sys.executable, "-c", "from fuels.cli import main; main()", "data", "describe", file]
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"fuels data describe {file} failed")
    return {
        "file": file.name,
        "megabytes": file.stat().st_size / 1e6,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / (1 if sys.platform == "darwin" else 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=6000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), given.clients, given.hours)
        found = [measure(file) for file in files]
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for each in found:
        print(
            f"{each['file']:14} {each['megabytes']:4.0f} MB  {each['seconds']:5.1f} s"
            f" ({each['cpu_seconds']:.1f} s of CPU)  peak {each['peak_mb']:.0f} MB"
        )


if __name__ == "__main__":
    main()
