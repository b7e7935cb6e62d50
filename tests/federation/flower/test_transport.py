"""Rounds across sites without a network: the same loop, sites and methods, byte for byte.

Time passes only when the transport waits, so deadlines are exact and tests are quick. The same
things with real processes are in test_processes.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.errors import FuelsError
from fuels.federation.codec import decode
from fuels.federation.flower.runs import Current
from fuels.federation.loop import Loop
from fuels.runs.build import build
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder
from helpers.flower_world import LIMIT, NEVER, SITES, World, fate, settings


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "fed", settings(rounds=4))


def local(run_settings: Settings, root: Path) -> Any:
    """The same on one machine, with all the data in one site."""
    changes = {"data": {"source": str(root / "panel.csv")}}
    return build(merge(run_settings, changes, "test"), Engine(threads=1))


# -- the same as on one machine --------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_uploads_and_errors_equal_the_local_engine(tmp_path: Path, method: str) -> None:
    world = World(tmp_path / "fed", settings(method, rounds=5))
    history = world.run()
    job = local(world.settings, world.root)
    first: dict[str, Any] = {}
    original = job.loop.transport.train

    def spy(number: int, clients: Any, download: Any) -> Any:
        replies, failures = original(number, clients, download)
        if number == 1:
            for row, client in enumerate(replies[0].upload.clients):
                first[client] = {n: a[row] for n, a in replies[0].upload.arrays.items()}
        return replies, failures

    job.loop.transport.train = spy
    job.loop.run()
    sent = world.uploads(1)
    assert set(sent) == set(first) == set("abcdef")
    for client, arrays in first.items():
        for name, values in arrays.items():
            np.testing.assert_allclose(sent[client][name], values, atol=1e-5)
    assert history[-1]["val_mse"] == pytest.approx(job.loop.val_mse.mean(), rel=0.01)


@pytest.mark.parametrize("method", ["solo", "fedprox", "fedrep", "perfedavg", "pfedme"])
def test_every_method_runs_across_sites(tmp_path: Path, method: str) -> None:
    world = World(tmp_path / "fed", settings(method, rounds=2))
    history = world.run()
    assert [line["clients"] for line in history] == [6, 6]
    assert all(line["failures"] == [] for line in history)


def test_after_training_each_site_has_models_and_forecasts(world: World) -> None:
    world.run()
    for site, ids in SITES.items():
        folder = RunFolder(world.root / "sites" / site / "runs" / "run")
        assert load_models(folder.models).ids == tuple(sorted(ids))
        assert folder.forecasts.exists() and folder.finished
        assert "FUELS" in json.loads(folder.summary.read_text())["scores"]
    kept = {path.name for path in (world.server.runs / "run").iterdir()}
    assert kept == {
        "config.toml", "flower.toml", "metrics.jsonl", "timings.jsonl", "server.safetensors",
        "summary.json", "report.html", "end.safetensors",
    }  # fmt: skip
    assert set(world.state()) == {"prototypes", "known", "jsd", "pairs_computed"}


@pytest.mark.parametrize(
    ("method", "figures", "kept", "reason"),
    [
        # A personal model's best round is known at its site, whatever the server may see.
        ("fuels", False, "best on the validation part", ""),
        ("fedavg", True, "best on the validation part", ""),
        ("fedavg", False, "last", "because the server named no best round"),
    ],
)
def test_a_site_says_which_model_it_kept(
    tmp_path: Path, method: str, figures: bool, kept: str, reason: str
) -> None:
    world = World(tmp_path / "fed", settings(method, rounds=2))
    for site in SITES if not figures else ():
        file = world.root / "sites" / site / "site.toml"
        file.write_text(file.read_text().replace("metrics = true", "metrics = false"))
    world.run()
    assert bool(world.summary()["best_round"]) == figures
    for site in SITES:
        found = RunFolder(world.root / "sites" / site / "runs" / "run").read_summary()
        assert (found["kept_model"], found["kept_last_because"]) == (kept, reason)


def test_the_preset_best_mixes_experts_at_each_site_and_the_server_sees_none(
    tmp_path: Path,
) -> None:
    changes = {"preset": "best", **PRESETS["best"]}
    chosen = merge(settings(), changes, "test")
    chosen = merge(chosen, {"training": {"rounds": 2}, "windows": {"split": "20/5/5"}}, "test")
    world = World(tmp_path / "fed", chosen)
    for site in SITES:
        world.give_data(site, days=30)
    history = world.run()
    assert [line["clients"] for line in history] == [6, 6]
    for site in SITES:
        folder = RunFolder(world.root / "sites" / site / "runs" / "run")
        assert folder.mixture.exists()  # with it, `fuels forecast` goes on at the site
        assert "mixture" in json.loads(folder.summary.read_text())
    sent = {
        name for _, _, _, content in world.network.got for name in decode(content, LIMIT).arrays
    }
    assert {name for name in sent if name.startswith("upload/")} == {"upload/prototype"}


# -- what leaves a site: see also test_what_is_sent.py ---------------------------------------------


def test_metrics_stay_at_a_site_that_does_not_allow_them(world: World) -> None:
    file = world.root / "sites" / "north" / "site.toml"
    file.write_text(file.read_text().replace("metrics = true", "metrics = false"))
    history = world.run()
    for site, kind, _, content in world.network.got:
        if site == "north" and kind == "train":
            assert set(decode(content, LIMIT).arrays) == {"upload/prototype"}
    assert history[-1]["clients"] == 6 and history[-1]["val_mse"] is not None


def test_a_site_takes_part_only_in_methods_it_consents_to(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings("fedavg", rounds=1))
    file = world.root / "sites" / "north" / "site.toml"
    file.write_text(file.read_text().replace('"fedavg",', ""))
    assert world.run()[0]["clients"] == 4
    assert {site for site, *_ in world.network.got} == {"south", "east"}


def test_bytes_per_client_and_round(tmp_path: Path) -> None:
    """FUELS at the paper's size: up 6144 numbers of 4 bytes, down twice that, plus at most 10 %."""
    chosen = merge(settings(rounds=2), {"model": {"hidden": 128}}, "test")
    world = World(tmp_path / "fed", chosen)
    world.run()
    for letters, least in ((world.network.got, 1), (world.network.sent, 2)):
        for _, kind, number, content in letters:
            if kind == "train" and number == 2:
                assert least * 24576 * 2 < len(content) <= 1.1 * least * 24576 * 2


# -- failures --------------------------------------------------------------------------------------


def test_a_round_closes_at_its_deadline_and_the_late_upload_counts_in_the_next(
    world: World,
) -> None:
    at: list[float] = []
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        if kind == "train":
            at.append(world.network.time)
        return original(contents, kind, number, ttl)

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        """North answers round 2 too late and round 3 never."""
        late = {2: 10.5, 3: NEVER} if (who, kind) == ("north", "train") else {}
        return late.get(number, 0.0), reply

    world.network.send = send  # type: ignore[method-assign]
    world.network.fate = decide
    history = world.run()
    assert history[1]["failures"] == ["north: no reply within 10 s"]
    assert history[1]["clients"] == 4
    assert history[2]["failures"] == ["north: no reply within 10 s"]
    assert history[2]["clients"] == 6  # the upload of round 2 stands in for that of round 3
    assert 10.0 <= at[2] - at[1] <= 12.0


def test_an_upload_that_is_two_rounds_late_is_stale(world: World) -> None:
    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        late = {1: 25.0, 2: NEVER, 3: NEVER} if (who, kind) == ("north", "train") else {}
        return late.get(number, 0.0), reply

    world.network.fate = decide
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4, 4, 6]
    assert any("stale" in text for text in history[2]["failures"])


def test_below_the_quorum_a_round_is_asked_again_and_nothing_is_trained_twice(
    tmp_path: Path,
) -> None:
    plain = World(tmp_path / "plain", settings(rounds=3))
    plain.run()
    world = World(tmp_path / "fed", settings(rounds=3), quorum=1.0)
    dropped: list[int] = []

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind, number) == ("south", "train", 2) and not dropped:
            dropped.append(number)
            return NEVER, reply
        return 0.0, reply

    world.network.fate = decide
    history = world.run()
    answers = [c for s, k, n, c in world.network.got if (s, k, n) == ("south", "train", 2)]
    assert len(answers) == 2 and answers[0] == answers[1]
    assert [line["clients"] for line in history] == [6, 6, 6]
    np.testing.assert_array_equal(world.state()["prototypes"], plain.state()["prototypes"])


def test_a_late_upload_of_a_site_that_was_not_asked_is_no_part_of_the_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North is late in round 2; round 3 asks the others, and south answers at the second time."""
    world = World(tmp_path / "fed", settings(rounds=3), quorum=0.6)
    select = Loop.select
    monkeypatch.setattr(
        Loop, "select", lambda loop, n, _: ("b", "c", "e", "f") if n == 3 else select(loop, n)
    )
    dropped: list[int] = []

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind, number) == ("south", "train", 3) and not dropped:
            dropped.append(number)
            return NEVER, reply
        return (10.5 if (who, kind, number) == ("north", "train", 2) else 0.0), reply

    world.network.fate = decide
    history = world.run()
    assert [s for s, k, n, _ in world.network.sent if (k, n) == ("train", 3)].count("south") == 2
    assert [line["clients"] for line in history] == [6, 4, 6]


def test_an_excluded_site_is_no_part_of_the_quorum(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=3), quorum=1.0)
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        tickets = original(contents, kind, number, ttl)
        if (kind, number) == ("train", 2):
            world.take_out("east")
        return tickets

    world.network.send = send  # type: ignore[method-assign]
    assert [line["clients"] for line in world.run()] == [6, 6, 4]
    assert world.summary()["unconfirmed"] == []


def test_without_a_quorum_the_run_stops_and_can_be_resumed(world: World) -> None:
    world.network.there = {"north"}
    with pytest.raises(FuelsError, match="1 of 3 sites joined"):
        world.run()
    world.network.there = set(SITES)
    limit = {"rounds": 2}

    def gone(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        away = kind == "train" and number > limit["rounds"] and who != "north"
        return (NEVER if away else 0.0), reply

    world.network.fate = gone
    with pytest.raises(FuelsError, match="round 3: 1 of 3 sites replied, 2 are needed"):
        world.run()
    limit["rounds"] = 99
    assert [line["round"] for line in world.run()] == [1, 2, 3, 4]


def test_a_site_absent_from_the_start_joins_and_gets_prototypes_one_round_later(
    world: World,
) -> None:
    world.network.there = {"north", "south"}
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        tickets = original(contents, kind, number, ttl)
        if kind == "train" and number == 1:
            world.network.there = set(SITES)
        return tickets

    world.network.send = send  # type: ignore[method-assign]
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4, 6, 6]
    asked = {n: c for s, k, n, c in world.network.sent if s == "east" and k == "train"}
    assert set(asked) == {3, 4}
    assert decode(asked[3], LIMIT).facts["having"] == []  # it gives its prototypes first
    assert set(decode(asked[4], LIMIT).facts["having"]) == {"c", "f"}


def test_thirty_percent_failing_at_random_for_twenty_rounds(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=20), attempts=10, quorum=0.3)
    rng = np.random.default_rng(3)

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if kind != "train" or rng.random() > 0.3:
            return 0.0, reply
        choices: list[tuple[float, bytes | str]] = [
            (NEVER, reply), (12.0, reply), (0.0, "it died"), (0.0, reply[:40]),
        ]  # fmt: skip
        return choices[rng.integers(len(choices))]

    world.network.fate = decide
    history = world.run()
    assert [line["round"] for line in history] == list(range(1, 21))
    assert sum(len(line["failures"]) for line in history) > 10
    assert history[-1]["val_mse"] < history[0]["val_mse"]


def test_a_stopped_run_ends_at_once_and_goes_on_when_resumed(world: World) -> None:
    current = Current(world.server)
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        if (kind, number) == ("train", 3):
            current.write(state="stopped")
        return original(contents, kind, number, ttl)

    world.network.send = send  # type: ignore[method-assign]
    world.network.fate = fate(3, "north", delay=5.0)
    with pytest.raises(FuelsError, match="was stopped"):
        world.run()
    assert world.network.time < 5.0
    assert current.read()["state"] == "stopped" and len(world.history()) == 2
    world.network.send = original  # type: ignore[method-assign]
    assert [line["clients"] for line in world.run()] == [6, 6, 6, 6]
    assert current.read()["state"] == "finished"


def test_the_end_sends_a_site_only_what_its_models_need(tmp_path: Path) -> None:
    for method, needed in (("fuels", set()), ("fedavg", {"shared/encoder", "shared/decoder"})):
        world = World(tmp_path / method, settings(method, rounds=2))
        world.run()
        ends = [content for _, kind, _, content in world.network.sent if kind == "finish"]
        assert [set(decode(content, LIMIT).arrays) for content in ends] == [needed] * 3


def test_a_restarted_server_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = World(tmp_path / "whole", settings(rounds=5))
    whole.run()
    world = World(tmp_path / "fed", settings(rounds=5))
    original = world.network.collect
    trained: list[str] = []

    class Killed(BaseException):
        pass

    def collect(tickets: Any) -> Any:
        """The server is killed after all sites have trained round 3, before it heard of it."""
        if sum(k == "train" and n == 3 for _, k, n, _ in world.network.got) == 3 and not trained:
            trained.append("killed")
            raise Killed
        return original(tickets)

    world.network.collect = collect  # type: ignore[method-assign]
    with pytest.raises(Killed):
        world.run()
    assert [line["round"] for line in world.history()] == [1, 2]
    history = world.run()
    assert [line["round"] for line in history] == [1, 2, 3, 4, 5]
    for name, array in whole.state().items():
        if name != "pairs_computed":
            np.testing.assert_array_equal(world.state()[name], array)
    assert history == whole.history()
