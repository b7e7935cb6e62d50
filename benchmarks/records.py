"""Published runs, trained again from nothing: how far each comes from its record.

    python benchmarks/records.py docs/results/records [--data FOLDER] [--only fuels-0] [--store DIR]

Data files are looked for by their name in the folder of --data (else FUELS_DATA); --only takes the
records whose file's name begins with it, and may be given several times. Shortest runs come first;
what is interrupted goes on with the same --store. Ends with status 1 where the mean MSE of a run
differs from its record by more than 1e-3.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fuels.config import Engine, Settings, merge
from fuels.data.loading import SYNTHETIC
from fuels.errors import FuelsError
from fuels.research.study.record import Record
from fuels.research.study.store import Store, ensure_run, run_key, spelt_out

LIMIT = 1e-3


def settings_of(record: Record, folder: Path, place: str) -> Settings:
    """The settings of a record, with its files where they lie here."""
    content = {**record.settings, "data": dict(record.settings["data"])}
    for name in ("source", "coordinates"):
        file = content["data"][name]
        if file and not file.startswith(SYNTHETIC):
            content["data"][name] = str(folder / file)
    return merge(Settings(), content, place)


def compare(path: Path, folder: Path, store: Store) -> tuple[float, str]:
    """(distance of the mean MSE, a line of the table) of a record trained again."""
    record = Record.read(path)
    settings = spelt_out(settings_of(record, folder, str(path)))
    if run_key(settings, store.dataset(settings)) != record.key:
        raise FuelsError(f"{path}: the data or the defaults are others now")
    again = ensure_run(settings, Engine(), store).record
    old, new = record.mse[record.title], again.mse[again.title]
    apart = abs(float(np.nanmean(new) - np.nanmean(old)))
    largest = float(np.nanmax(np.abs(new - old)))
    line = f"| {path.stem} | {np.nanmean(old):.6f} | {np.nanmean(new):.6f} | {apart:.1e} "
    return apart, line + f"| {largest:.1e} | {first_change(record, again)} |"


def first_change(record: Record, again: Record) -> str:
    """The round in which a training loss first differs by more than the record's last digits."""
    rounds = [
        np.flatnonzero(~np.isclose(again.history[name], values, rtol=1e-6, equal_nan=True))
        for name, values in record.history.items()
        if name.startswith("loss_")
    ]
    found = [int(where[0]) + 1 for where in rounds if len(where)]
    return str(min(found)) if found else "none"


def work(options: argparse.Namespace, runs: Path) -> bool:
    """Whether every run is near its record."""
    paths = chosen(options.records, options.only)
    near, store = True, Store(runs)
    print("| run | MSE of the record | again | apart | largest of a client | first round apart |")
    print("|---|---|---|---|---|---|")
    for path in paths:
        apart, line = compare(path, options.data, store)
        near &= apart <= LIMIT
        print(line, flush=True)
    return near


def chosen(records: Path, only: Sequence[str]) -> list[Path]:
    paths = [
        path
        for path in records.glob("*.json")
        if not only or any(path.name.startswith(start) for start in only)
    ]
    if not paths:
        raise FuelsError(f"{records}: no such records")
    return sorted(paths, key=lambda path: (Record.read(path).seconds, path.name))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FUELS_DATA", ".")))
    parser.add_argument("--only", action="append", default=[], metavar="START")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    try:
        if options.store is not None:
            sys.exit(int(not work(options, options.store)))
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(int(not work(options, Path(folder))))
    except FuelsError as error:
        sys.exit(f"records: {error}")


if __name__ == "__main__":
    main()
