"""Notices between processes: each is seen once, and without one the receiver asks now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuels.federation.flower import notices
from fuels.federation.flower.notices import Notice, Notices, Watch


def test_a_notice_is_due_once(tmp_path: Path) -> None:
    notice = Notices(tmp_path / "posted").of(7)
    watch = Watch(notice, 60.0)
    assert watch.due() and not watch.due()  # the first time in any case
    notice.give()
    assert notice.time() == 0 and not watch.due()  # it was not opened
    notice.open()
    assert watch.due() and not watch.due()
    for _ in range(3):  # also if a file system's clock is coarse
        notice.give()
        assert watch.due() and not watch.due()
    notice.open()
    assert not watch.due()


def test_without_notices_the_receiver_asks_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(notices.time, "monotonic", lambda: now)
    watch = Watch(Notice(tmp_path / "arrived"), 2.0)
    assert watch.due()
    now = 101.9
    assert not watch.due()
    now = 102.0
    assert watch.due() and not watch.due()


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    notice = Notice(tmp_path / "state" / "arrived")
    notice.open()
    notice.give()
    assert notice.time() == 0
