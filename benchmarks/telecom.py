"""How fast, and in how much memory, raw Telecom Italia records become a panel file.

    python benchmarks/telecom.py [--files 2 30 62 200] [--cells 10000] [--step 1h] [--layouts ...]
                                 [--thin 12] [--polars] [--json]

Speed: two files of realistic records (several country codes per cell and ten minutes, about 70
bytes each, in the order of the real files: by cell, then time), 600 MB in all. Memory: growing
numbers of files of a day each, all cells in all of them but with records only every `thin` tens of
minutes, so that many days fit on a disk; the sums are as large as those of full records. With
--polars, all three activities, and a second line with the same sums by polars. Every other line is
one `fuels data convert` in a fresh process; the files were just written, so they come from the
page cache and not from the disk. About 4 GB in the temporary folder, removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def write_day(folder: Path, day: int, cells: int, thin: int = 1, seed: int = 0) -> None:
    """The records of one day; with `thin` of one country and of every so many intervals only."""
    rng = np.random.default_rng([seed, day])
    # The first and the last interval are always there, so that no step is incomplete.
    ticks = np.unique([*range(0, INTERVALS, thin), INTERVALS - 1])
    cell = np.repeat(np.arange(1, cells + 1), len(ticks))
    moment = np.tile(FIRST_MS + day * 86_400_000 + 600_000 * ticks, cells)
    tables = []
    for code, (share, filled) in COUNTRIES.items():
        if thin > 1 and code != 39:
            continue
        rows = np.flatnonzero(rng.random(len(cell)) < share)
        columns = {"cell": cell[rows], "time": moment[rows], "code": np.full(len(rows), code)}
        for number, part in enumerate(filled):
            amount = rng.gamma(0.6, 10.0 if number == 4 else 0.5, len(rows))
            columns[f"v{number}"] = np.where(rng.random(len(rows)) < part, amount, np.nan)
        tables.append(pl.DataFrame(columns).fill_nan(None))
    records = pl.concat(tables).filter(pl.any_horizontal(pl.col("^v.$").is_not_null()))
    path = folder / f"sms-call-internet-mi-{np.datetime64('2013-11-01') + day}.txt"
    digits = None if thin == 1 else 2
    records.sort("cell", "time", "code").write_csv(
        path, separator="\t", include_header=False, float_precision=digits
    )


def convert(words: list[str]) -> dict[str, float]:
    """`fuels data convert` in this process: seconds, and peak memory before and after."""
    from fuels.cli.commands import app

    base, clock = _peak_mb(), (time.perf_counter(), time.process_time())
    app(["data", "convert", *words, "--overwrite"], standalone_mode=False)
    return figures(base, *clock)


def figures(base: float, wall: float, cpu: float) -> dict[str, float]:
    """What this process took since these times."""
    seconds = {"seconds": time.perf_counter() - wall, "cpu seconds": time.process_time() - cpu}
    return {**seconds, "base MB": base, "peak MB": _peak_mb()}


def by_polars(folder: Path, out: Path) -> dict[str, float]:
    """The same sums by polars' streaming engine; nothing about the records is checked."""
    base, clock = _peak_mb(), (time.perf_counter(), time.process_time())
    kinds = {"cell": pl.Int64, "time": pl.Int64, "code": pl.Int64}
    kinds |= dict.fromkeys(("sms_in", "sms_out", "call_in", "call_out", "net"), pl.Float64)
    files = sorted(folder.iterdir())
    records = pl.scan_csv(files, separator="\t", has_header=False, schema=kinds).fill_null(0)
    sums = records.group_by("cell", pl.col("time") // 3_600_000).agg(
        (pl.col("sms_in") + pl.col("sms_out")).sum().alias("sms"),
        (pl.col("call_in") + pl.col("call_out")).sum().alias("call"),
        pl.col("net").sum(),
    )
    sums.sink_parquet(out, engine="streaming")
    return figures(base, *clock)


def _peak_mb() -> float:
    """Peak memory of this process; getrusage would count the parent's before the start too."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this benchmark reads peak memory from /proc and needs Linux")


def measure(folder: Path, what: str, options: list[str], out: Path) -> dict[str, Any]:
    files = list(folder.iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6
    command = [sys.executable, __file__, "--convert", str(folder), "--out", str(out), *options]
    if options == ["polars"]:
        command = [sys.executable, __file__, "--polars", str(folder), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    return {
        "what": what,
        "files": len(files),
        "MB": size,
        "MB/s": size / figures["seconds"],
        **figures,
        "written MB": sum(path.stat().st_size for path in out.parent.iterdir()) / 1e6,
    }


def cases(options: argparse.Namespace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        raw, out = Path(name) / "raw", Path(name) / "out"
        raw.mkdir()
        out.mkdir()

        def add(what: str, words: list[str], ending: str) -> None:
            found.append(measure(raw, what, words, out / f"panel{ending}"))
            _show(found[-1], options.json)
            for path in out.iterdir():
                path.unlink()

        cells = round(600e6 / 2 / BYTES_PER_CELL_AND_DAY)
        for day in range(2):
            write_day(raw, day, cells)
        add("full records, 3 activities, 1h", ["--activity", "all"], ".parquet")
        for path in raw.iterdir():
            path.unlink()
        for day in range(max(options.files)):
            write_day(raw, day, options.cells, options.thin)
            if day + 1 in options.files:
                step = ["--resample", options.step, "--how", "sum"]
                if options.polars:
                    step += ["--activity", "all"]
                    add(f"{options.cells} cells, 1h, by polars", ["polars"], ".parquet")
                for layout in options.layouts:
                    ending, _, form = layout.partition(":")
                    add(
                        f"{options.cells} cells, {options.step}, {layout}",
                        [*step, "--layout", form or "long"],
                        ending,
                    )
    return found


def _show(row: dict[str, Any], quiet: bool) -> None:
    if not quiet:
        words = [f"{v:,.0f} {k}" for k, v in row.items() if k != "what"]
        print(f"{row['what']:34}", ", ".join(words), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--convert"]:  # the measuring process
        print(json.dumps(convert(sys.argv[2:])))
        return
    if sys.argv[1:2] == ["--polars"]:
        print(json.dumps(by_polars(*map(Path, sys.argv[2:]))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--files", type=int, nargs="+", default=[2, 30, 62, 200])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--step", default="1h")
    parser.add_argument("--thin", type=int, default=12)
    parser.add_argument(
        "--layouts",
        nargs="+",
        default=[".parquet"],
        help=".parquet, .npz, .csv, .parquet:wide, ...",
    )
    parser.add_argument("--polars", action="store_true", help="compare with polars")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = cases(options)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
