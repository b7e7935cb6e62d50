"""An audit log: lines are only appended, and each contains the hash of the line before.

A line is a JSON object; `before` is the SHA-256 of the previous line. So a line that is changed,
deleted or inserted breaks the chain. A small file next to the log holds the number of lines and the
hash of the last one, so that lines missing at the end are noticed too. Whoever can write both files
can write another history: to exclude that, keep the last hash, which `status` prints, elsewhere.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fuels.errors import FuelsError

START = "0" * 64  # what comes before the first line
CHANGED = "lines before this one are missing"
TAIL = 65536  # bytes at the end in which the last line begins


class Audit:
    """One log; several processes may append to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = path.with_name(f"{path.name}.head")

    def add(self, event: str, **facts: Any) -> None:
        self.add_all([{"event": event, **facts}])

    def add_all(self, events: list[Mapping[str, Any]]) -> None:
        """Append these events and wait until they are on disk."""
        if not events:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                count, before = self._last(file)
                written = self._head()
                if not self._follows(written, count, before):
                    events = [{"event": CHANGED, "written": written[0]}, *events]
                for event in events:
                    count += 1
                    entry = {"number": count, "time": now, **event, "before": before}
                    line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
                    before = hashlib.sha256(line).hexdigest()
                    file.write(line)
                file.flush()
                os.fsync(file.fileno())
                temporary = self.head.with_name(f"{self.head.name}.tmp")
                temporary.write_text(f"{count} {before}\n", encoding="ascii")
                temporary.replace(self.head)
        except OSError as error:
            raise FuelsError(f"{self.path}: cannot be written ({error.strerror})") from None

    def _last(self, file: BinaryIO) -> tuple[int, str]:
        """Number and hash of the last line; a line cut off by a power failure is completed."""
        size = file.seek(0, os.SEEK_END)
        if not size:
            return 0, START
        file.seek(max(0, size - TAIL))
        end = file.read()
        if not end.endswith(b"\n"):
            file.write(b"\n")
            end += b"\n"
        line = end[end[:-1].rfind(b"\n") + 1 :]
        try:
            number = int(json.loads(line)["number"])
        except (ValueError, KeyError, TypeError):
            number = self.count()
        return number, hashlib.sha256(line).hexdigest()

    def _head(self) -> tuple[int, str]:
        """The number of lines that were written, and the hash of the last one."""
        try:
            number, last = self.head.read_text(encoding="ascii").split()
            return int(number), last
        except (OSError, ValueError):
            return 0, START

    def _follows(self, written: tuple[int, str], count: int, last: str) -> bool:
        """Whether a log of so many lines contains what was written; it may be a line ahead."""
        number, expected = written
        if (number, expected) == (count, last) or number == 0:
            return number == count
        lines = self.path.read_bytes().splitlines(keepends=True)
        found = lines[number - 1] if number <= len(lines) else b""
        return hashlib.sha256(found).hexdigest() == expected

    def count(self) -> int:
        return sum(1 for _ in self.path.open("rb")) if self.path.exists() else 0

    def entries(self) -> list[dict[str, Any]]:
        """All readable lines."""
        found = []
        for line in self.path.read_bytes().splitlines() if self.path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
        return found

    def check(self) -> tuple[int, str, str]:
        """The number of lines, the hash of the last one, and what is wrong ("": nothing)."""
        if not self.path.exists():
            return 0, START, "the file is missing" if self.head.exists() else ""
        with self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            lines = file.read().splitlines(keepends=True)
            written = self._head()
        before = START
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                intact = entry["number"] == number and entry["before"] == before
                intact = intact and entry["event"] != CHANGED
            except (ValueError, KeyError, TypeError):
                intact = False
            before = hashlib.sha256(line).hexdigest()
            if not intact:
                return len(lines), before, f"line {number} does not follow from the one before"
        if not self._follows(written, len(lines), before):
            last = f"it ends with line {len(lines)}; {written[0]} lines were written"
            return len(lines), before, last
        return len(lines), before, ""


def fingerprint(key: str) -> str:
    """A public key in a log, as `ssh-keygen -l` begins."""
    return "SHA256:" + hashlib.sha256(key.encode()).hexdigest()[:16]
