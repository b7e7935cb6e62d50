"""The logs of a server and of a site rotate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuels.federation.flower import folders
from fuels.federation.flower.folders import log, set_up_log


@pytest.fixture
def restored() -> Iterator[None]:
    before = log.handlers, log.propagate, log.level
    yield
    for handler in log.handlers:
        handler.close()
    log.handlers, log.propagate = before[:2]
    log.setLevel(before[2])


@pytest.mark.usefixtures("restored")
def test_a_log_keeps_its_newest_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOG_SIZE", 10_000)
    set_up_log(tmp_path / "state" / "site.log")
    log.handlers[0].setLevel(logging.CRITICAL)  # not to the screen
    for number in range(1000):
        log.info("line %d: %s", number, "x" * 80)
    files = sorted((tmp_path / "state").iterdir())
    assert [file.name for file in files] == ["site.log", *(f"site.log.{n}" for n in (1, 2, 3))]
    assert all(file.stat().st_size <= 10_000 for file in files)
    assert "line 999: " in files[0].read_text().splitlines()[-1]
