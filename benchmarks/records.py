"""Retrain published runs and compare them with their records, or pack records into the archive.

    python benchmarks/records.py results/records.jsonl.xz [--data FOLDER] [--only fuels-0]
    python benchmarks/records.py results/records.jsonl.xz --pack runs/store [--pack FOLDER]

The first command retrains runs from scratch, the shortest first. It looks for data files by name in
the folder given by --data (default: FUELS_DATA); --only selects records whose name starts with the
given text and may be repeated. With the same --store an interrupted comparison resumes. The exit
status is 1 if the mean MSE of a run differs from its record by more than 1e-4.

The second command merges the JSON records in a folder, such as a store, into the archive.
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
from fuels.research.study.archive import is_archive, pack, read_archive
from fuels.research.study.record import Record
from fuels.research.study.store import Store, ensure_run, run_key
from fuels.runs.settings import resolve

LIMIT = 1e-4


def settings_of(record: Record, folder: Path) -> Settings:
    """The settings of a record, with its data files in this folder."""
    content = {**record.settings, "data": dict(record.settings["data"])}
    for name in ("source", "coordinates"):
        file = content["data"][name]
        if file and not file.startswith(SYNTHETIC):
            content["data"][name] = str(folder / file)
    return merge(Settings(), content, record.name)


def compare(record: Record, folder: Path, store: Store) -> tuple[float, str]:
    """(difference of the mean MSE, a line of the table) of a run trained again."""
    settings = resolve(settings_of(record, folder))
    if run_key(settings, store.dataset(settings)) != record.key:
        raise FuelsError(f"{record.name}: the data or the default settings have changed")
    again = ensure_run(settings, Engine(), store).record
    old, new = record.mse[record.title], again.mse[again.title]
    apart = abs(float(np.nanmean(new) - np.nanmean(old)))
    largest = float(np.nanmax(np.abs(new - old)))
    line = f"| {record.name} | {np.nanmean(old):.6f} | {np.nanmean(new):.6f} | {apart:.1e} "
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


def retrain(options: argparse.Namespace, runs: Path) -> bool:
    """Whether every run comes close to its record."""
    records = select(read_records(options.records), options.only)
    close, store = True, Store(runs)
    print("| run | MSE in the record | retrained | difference | largest, one client | from round |")
    print("|---|---|---|---|---|---|")
    for record in records:
        apart, line = compare(record, options.data, store)
        close &= apart <= LIMIT
        print(line, flush=True)
    return close


def read_records(path: Path) -> list[Record]:
    """The records of an archive, or of a folder of JSON files."""
    if is_archive(path):
        return list(read_archive(path).values())
    return [Record.read(file) for file in path.glob("*.json")]


def select(records: Sequence[Record], only: Sequence[str]) -> list[Record]:
    """Records whose name starts with any of `only` (default: all), the shortest run first."""
    found = [record for record in records if not only or record.name.startswith(tuple(only))]
    if not found:
        raise FuelsError("no such records")
    return sorted(found, key=lambda record: (record.seconds, record.name))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FUELS_DATA", ".")))
    parser.add_argument("--only", action="append", default=[], metavar="START")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--pack", action="append", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    try:
        if options.pack:
            counts = pack(options.records, options.pack)
            print(", ".join(f"{count} {what}" for what, count in counts.items()))
            return
        if options.store is not None:
            sys.exit(int(not retrain(options, options.store)))
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(int(not retrain(options, Path(folder))))
    except FuelsError as error:
        sys.exit(f"records: {error}")


if __name__ == "__main__":
    main()
