"""Hourly values for a service that is killed and stopped, then for the library, until a drift."""

from __future__ import annotations

import json
import os
import signal
import stat
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fuels.data.panel import Panel
from fuels.forecasting.folder import LEARNED
from fuels.forecasting.issued import read_issued
from fuels.forecasting.saved_run import SavedRun
from helpers.commands import Fuels
from helpers.live import NOW, as_json, copied, drifted, follow, hours, served, whole_panel

TOKEN = "a-token-of-some-length"


def ask(address: str, path: str, body: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    data = None if body is None else body.encode()
    request = urllib.request.Request(f"{address}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def post_hours(address: str, panel: Panel, first: int, last: int) -> None:
    """One post an hour, and its forecast."""
    for step in range(first, last):
        assert ask(address, "/values", as_json(hours(panel, step, step + 1)))["values"] == 6
        found = ask(address, "/forecasts")
        assert found["newest_value"].startswith(str(panel.times[step] + panel.standard_offset))
        assert all(row["steps"][0]["forecast"] is not None for row in found["forecasts"])


def token_in(folder: Path) -> str:
    file = folder / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return str(file)


def serve_hours(folder: Path, panel: Panel, tmp_path: Path, killed: int, last: int) -> None:
    """Some hours until a kill just after an answer, and more until SIGTERM."""
    options = ("--token-file", token_in(tmp_path), "--horizon", "2", "--threads", "1")
    with served(folder, *options) as (process, address):
        post_hours(address, panel, NOW, killed)
        assert ask(address, "/values", as_json(hours(panel, killed, killed + 1)))["values"] == 6
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    with served(folder, *options) as (process, address):
        found = ask(address, "/forecasts")
        answered = str(panel.times[killed] + panel.standard_offset)
        assert found["newest_value"].startswith(answered)
        post_hours(address, panel, killed + 1, last)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def monitored(fuels: Fuels, *words: str) -> Any:
    code, out, err = fuels("monitor", "run", "--json", *words)
    assert code == 0, err
    return json.loads(out)


def hours_after(moment: str, start: str) -> float:
    return (datetime.fromisoformat(moment) - datetime.fromisoformat(start)).total_seconds() / 3600


def check_alarms(found: Any, panel: Panel, at: int) -> None:
    """Raised within two days, about what began at `at`."""
    start = str(panel.times[at] + panel.standard_offset)
    alarms = [one["together"] for one in found["drift"].values() if one["together"] is not None]
    assert alarms
    for alarm in alarms:
        assert 0 <= hours_after(alarm["raised"], start) < 48 and alarm["lasts"]


def test_a_short_week(fuels: Fuels, small_run: Path, tmp_path: Path) -> None:
    """A day and a half as usual, in part served, then a day whose pattern is six hours late."""
    folder, at = copied(small_run, tmp_path / "run"), NOW + 36
    panel = drifted(whole_panel(), at, "pattern")
    serve_hours(folder, panel, tmp_path, NOW + 4, NOW + 8)
    issued = read_issued(folder)
    assert issued is not None and issued.horizon == 2
    assert issued.cutoffs.tolist() == panel.times[NOW - 1 : NOW + 8].tolist()
    same = copied(small_run, tmp_path / "same")  # in one call, without a service
    SavedRun.load(same).forecast(hours(panel, NOW, NOW + 8), 2)
    assert (folder / LEARNED).read_bytes() == (same / LEARNED).read_bytes()
    follow(folder, panel, NOW + 8, at)
    before = monitored(fuels, "--fail-on", "flags")
    assert before["flags"] == [] and before["retrain"]["advice"] == "no"
    assert [row["steps"] for row in before["steps_ahead"]] == [1, 2]
    follow(folder, panel, at, at + 24)
    after = monitored(fuels)
    check_alarms(after, panel, at)
    assert after["drift"]["errors"]["together"] and after["drift"]["values"]["together"]
    assert after["retrain"]["advice"] == "soon" and "errors have been" in str(after["retrain"])
    assert fuels("monitor", "run", "--fail-on", "drift")[0] == 3
    assert fuels("monitor", "run", "--fail-on", "retrain")[0] == 3
    code, out, _ = fuels("monitor", "run")
    assert code == 0 and "Advice: train again from" in out and "last week" in out
    code, _, err = fuels("report", "run")
    assert code == 0, err
    page = (folder / "report.html").read_text()
    assert "How the forecasts did since" in page and "errors have been" in page


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["none", "level", "scale", "pattern"])
def test_a_week(kind: str, fuels: Fuels, small_run: Path, tmp_path: Path) -> None:
    """Five days as usual, the first of them served, then two with a drift."""
    folder, at = copied(small_run, tmp_path / "run"), NOW + 5 * 24 + 7
    panel = drifted(whole_panel(), at, kind)
    serve_hours(folder, panel, tmp_path, NOW + 12, NOW + 24)
    follow(folder, panel, NOW + 24, at)
    assert monitored(fuels)["flags"] == []
    follow(folder, panel, at, NOW + 7 * 24)
    found = monitored(fuels)
    if kind == "none":
        assert found["flags"] == [] and found["retrain"]["advice"] == "no"
    else:
        check_alarms(found, panel, at)


def test_what_it_refuses_to_serve(fuels: Fuels, small_run: Path, tmp_path: Path) -> None:
    folder = str(small_run)
    (tmp_path / "short").write_text("abc\n")
    for words, said in (
        (("nowhere",), "no such run"),
        ((folder, "--implausible", "maybe"), "implausible"),
        ((folder, "--at-least", "9", "--at-most", "1"), "at"),
        ((folder, "--host", "0.0.0.0"), "--host 0.0.0.0 can be reached from other machines"),
        ((folder, "--host", "no such host"), "--host no such host: no such address"),
        ((folder, "--host", "192.0.2.1", "--token-file", token_in(tmp_path)), "cannot listen on"),
        ((folder, "--token-file", "short"), "a token is one word of at least 16 characters"),
        ((folder, "--token-file", "none"), "none: cannot be read"),
    ):
        code, _, err = fuels("serve", *words)
        assert code == 1 and said in err and err.count("\n") == 1, err
