"""An archive: the records of many runs in one file, for publishing them with the project.

The file holds JSON Lines compressed with xz, one record per line, sorted by method and key. Studies
only read it. New runs leave their records as single JSON files in the store, so that studies which
run at the same time or are killed lose nothing; `pack` merges such files into the archive.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path

from fuels.data.files import make_folder, os_errors, writing
from fuels.errors import FuelsError
from fuels.research.study.record import Record

SUFFIX = ".jsonl.xz"


def is_archive(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def read_archive(path: Path) -> dict[str, Record]:
    """All records of an archive, by their name, METHOD-KEY."""
    try:
        with os_errors(path, "cannot be read"), lzma.open(path, "rt", encoding="utf-8") as file:
            lines = file.readlines()
    except (lzma.LZMAError, EOFError, ValueError):
        raise FuelsError(f"{path}: not an archive of records (xz-compressed JSON Lines)") from None
    records = [Record.from_json(line, f"{path}, line {i}") for i, line in enumerate(lines, 1)]
    return {record.name: record for record in records}


def write_archive(path: Path, records: Mapping[str, Record]) -> None:
    text = "".join(f"{json.dumps(records[name].to_dict())}\n" for name in sorted(records))
    make_folder(path.parent)
    with writing(path) as temporary:
        temporary.write_bytes(lzma.compress(text.encode(), preset=9))


def pack(path: Path, folders: Iterable[Path]) -> dict[str, int]:
    """Merge the JSON records of folders into an archive, and count what happened to them.

    A record with the settings of an archived one does not replace it: published numbers stay. One
    with the same key and other settings, made under newer defaults, does, and so does one with
    errors by test period, which early records do not have.
    """
    records = read_archive(path) if path.exists() else {}
    counts = {"added": 0, "replaced": 0, "already there": 0}
    for folder in folders:
        files = sorted(folder.glob("*.json"))
        if not files:
            raise FuelsError(f"{folder}: holds no records")
        for record in map(Record.read, files):
            archived = records.get(record.name)
            if archived is not None and archived.serves_as(record):
                counts["already there"] += 1
                continue
            counts["added" if archived is None else "replaced"] += 1
            records[record.name] = record
    write_archive(path, records)
    return counts
