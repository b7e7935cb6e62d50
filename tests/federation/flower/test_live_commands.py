"""`fuels federation live` and what `status` and `stop` say of a live series."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fuels.cli import refit
from fuels.cli.commands import app
from fuels.config import Engine, Settings, merge
from fuels.errors import FuelsError
from fuels.federation.flower import runs
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.live_record import LiveRecord
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.runs import Current
from fuels.federation.flower.status import live_facts, live_lines
from fuels.storage.config_file import read_config, write_toml

pytest.importorskip("flwr")
RUN = "fuels-1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFolder:
    """A server that answers, without its processes."""
    provision(tmp_path / "metro", "metro", ["north", "south", "east"], "127.0.0.1", 9)
    monkeypatch.setattr(runs, "is_listening", lambda folder: True)
    monkeypatch.setattr(runs, "submit", lambda folder: "")
    return ServerFolder(tmp_path / "metro")


def finished(server: ServerFolder, *, live_mean: bool = True) -> Path:
    folder = server.runs / RUN
    folder.mkdir(parents=True)
    settings = merge(Settings(), {"sharing": {"live_mean": live_mean}}, "test")
    write_toml(folder / "config.toml", settings, Engine())
    (folder / "flower.toml").touch()
    (folder / "summary.json").write_text("{}\n")
    Current(server).write(run=RUN, state="finished")
    return folder


def said(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["federation", *map(str, arguments)])
    return " ".join((result.output + str(result.exception or "")).split())


def test_a_series_needs_a_finished_run_that_uses_it(server: ServerFolder) -> None:
    assert "there is no run yet: start one with fuels federation run" in said("live", server.path)
    folder = finished(server, live_mean=False)
    assert "was trained without sharing.live_mean" in said("live", server.path)
    (folder / "summary.json").unlink()
    assert f"run {RUN} is not finished" in said("live", server.path)
    Current(server).write(state="running")
    assert "start the series when it has finished" in said("live", server.path)


def test_a_series_is_started_and_keeps_runs_from_starting(server: ServerFolder) -> None:
    finished(server)
    assert said("live", server.path, "--detach") == f"live series of run {RUN}"
    assert Current(server).read() == {
        "run": RUN, "state": "submitted", "reason": "", "live": True,
    }  # fmt: skip
    assert runs.is_live(server, RUN)
    assert "live series of run fuels-1 is in progress" in said("run", server.path, "--resume")
    assert "is not finished: stop it" in said("run", server.path)
    shown = said("live", server.path, "--show")
    assert "flwr run" in shown and f"runs/{RUN}/flower.toml" in shown


def test_a_refit_keeps_the_settings_and_the_series_going(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no run yet" in said("refit", server.path)
    finished(server)
    Current(server).write(state="running", live=False)
    assert "refit when it has finished" in said("refit", server.path)
    Current(server).write(state="running", live=True)
    monkeypatch.setattr(runs.commands, "stop", lambda folder, number: "")
    ends = {"state": "finished", "reason": ""}
    seen: list[tuple[str, int]] = []

    def follow(folder: ServerFolder, run: str, rounds: int, *, as_json: bool) -> None:
        seen.append((str(Current(folder).read()["state"]), rounds))
        if ends["state"] == "finished":
            (folder.runs / run / "summary.json").write_text("{}\n")
        Current(folder).write(**ends)
        if ends["reason"]:
            raise FuelsError(ends["reason"])

    monkeypatch.setattr(refit, "follow_run", follow)
    words = said("refit", server.path, "--rounds", 3, "--set", "windows.split=9/2/2")
    now = Current(server).read()
    assert seen == [("submitted", 3)] and now["run"] != RUN and now["live"]
    assert f"the live series continues with run {now['run']}" in words
    settings, _ = read_config(server.runs / now["run"] / "config.toml")
    assert settings.sharing.live_mean and settings.windows.split == "9/2/2"
    # A run that fails costs nothing but its time.
    Current(server).write(run=RUN, state="running", live=True)
    ends |= {"state": "failed", "reason": "0 of 3 sites joined"}
    words = said("refit", server.path, "--set", "seed=7")
    assert "0 of 3 sites joined" in words and f"continues with run {RUN}" in words
    found = Current(server).read()
    assert (found["run"], found["state"], found["live"]) == (RUN, "submitted", True)
    # Without a series, none begins.
    Current(server).write(run=RUN, state="finished", live=False)
    ends |= {"state": "finished", "reason": ""}
    assert "live series" not in said("refit", server.path)
    assert not Current(server).read()["live"]


def test_a_series_in_words(server: ServerFolder) -> None:
    record = LiveRecord.load(finished(server))
    assert live_facts(server, RUN) == {} and live_lines({}) == []
    record.begin(1_700_000_400, 3600)
    record.ask(("east", "north", "south"))
    record.count("bytes_up", 6000)
    record.done(1.5, 12.0, 2.25, ("east", "north", "south", "west"))
    record.skip("south: no reply")
    record.skip("the series was interrupted", 5)
    record.refusals["west"] = "it does not consent"
    record.save()
    again = LiveRecord.load(server.runs / RUN)
    assert (again.facts(), again.next) == (record.facts(), 1_700_000_400 + 7 * 3600)
    assert live_lines(live_facts(server, RUN)) == [
        "2023-11-14 22:20  12 values of east, north, south (without west), in 2.2 s",
        "1 steps with a sum, 6 skipped, 286 bytes for each site and step",
        "2023-11-14 23:20  skipped: south: no reply",
        "2023-11-15 00:20 and 4 more  skipped: the series was interrupted",
        "west takes no part: it does not consent",
    ]
    first, sums = again.since(1_700_000_400 + 3600, 3)
    assert first == 1_700_004_000 and sums[:, 1].tolist() == [0.0, 0.0, 0.0]
    (server.runs / RUN / "live.safetensors").write_bytes(b"damaged")
    with pytest.raises(Exception, match="restore it from a backup, or delete it"):
        LiveRecord.load(server.runs / RUN)
