"""Health and metrics: what the endpoints say, and that nobody else can reach them."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import httpx
import pytest

from fuels.errors import FuelsError
from fuels.federation.flower import commands, metrics
from fuels.federation.flower.folders import SiteFolder
from fuels.federation.flower.live_record import LiveRecord
from fuels.federation.flower.records import SiteRecords
from fuels.federation.flower.runs import Current
from helpers.flower_world import World, fate, settings

pytest.importorskip("flwr")
DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana-dashboard.json"
LINE = re.compile(r'(fuels_\w+)(\{(?:\w+="(?:[^"\\]|\\.)*",?)+\})? (-?[\d.e+-]+|nan)')


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """After two rounds; in the second, north sends something that is no message."""
    found = World(tmp_path_factory.mktemp("metrics") / "fed", settings(rounds=2))
    found.network.fate = fate(2, "north", becomes=lambda _: b'FUELS "nonsense"\n')
    found.run()
    return found


def samples(text: str) -> dict[str, float]:
    """Every line of the text format, checked; name and labels: value."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP fuels_\w+ .+\.|TYPE fuels_\w+ (gauge|counter))", line)
            continue
        match = LINE.fullmatch(line)
        assert match, line
        found[f"{match[1]}{match[2] or ''}"] = float(match[3])
    return found


def test_the_server_counts_rounds_quorum_refusals_bytes_and_ages(world: World) -> None:
    found = samples(metrics.server_metrics(world.server))
    counters = world.summary()["counters"]
    expected = {
        "fuels_round": 2,
        "fuels_rounds": 2,
        "fuels_sites": 3,
        "fuels_round_replies": 2,
        "fuels_round_quorum": 2,
        "fuels_round_clients": 4,
        "fuels_server_up": 0,
        "fuels_run_active": 0,
        'fuels_refused_total{site="north",reason="the message is not in this format"}': 1,
        'fuels_upload_age_rounds{site="north"}': 1,
        'fuels_upload_age_rounds{site="south"}': 0,
    }
    assert {name: found[name] for name in expected} == expected
    assert 0 < found["fuels_bytes_up_total"] <= counters["bytes_up"]  # the end is not a round
    assert 0 < found["fuels_bytes_down_total"] <= counters["bytes_down"]


def test_figures_of_a_former_run_are_not_shown(world: World) -> None:
    current = Current(world.server)
    before = current.read()
    current.write(run="another")
    assert samples(metrics.server_metrics(world.server))["fuels_round"] == 0
    current.write(**before)


def test_health_names_what_is_wrong(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics.server_health(world.server) == "the server does not accept connections"
    monkeypatch.setattr(metrics, "is_listening", lambda _: True)
    assert metrics.server_health(world.server) == ""
    current = Current(world.server)
    before = current.read()
    current.write(state="failed", reason="no usable upload")
    assert metrics.server_health(world.server) == "run run failed: no usable upload"
    current.write(**before)
    assert metrics.site_health({"worker": True, "SuperNode": False}) == "not running: SuperNode"


def test_a_site_counts_what_it_sends_and_refuses(world: World) -> None:
    folder = SiteFolder(world.root / "sites" / "south")
    SiteRecords(folder).refused('the server asks for "x\n1", which is no client of this site')
    found = samples(metrics.site_metrics(folder, {"worker": True}))
    assert found['fuels_site_requests_total{kind="train"}'] == 2
    assert found['fuels_site_requests_total{kind="hello"}'] == 1
    assert found["fuels_site_bytes_up_total"] > 2 * 24 * 16 * 4 * 2
    assert found["fuels_site_upload_age_seconds"] >= 0
    assert found['fuels_site_up{part="worker"}'] == 1
    asked = "the server asks for *, which is no client of this site"
    assert found[f'fuels_site_refused_total{{reason="{asked}"}}'] == 1


def test_the_server_shows_a_live_series(world: World) -> None:
    current = Current(world.server)
    before = current.read()
    assert samples(metrics.server_metrics(world.server))["fuels_live_active"] == 0
    record = LiveRecord.load(world.server.runs / "run")
    record.begin(1_700_000_000, 300)
    everyone = ("east", "north", "south", "west")
    for there in (everyone, everyone[:3]):
        record.ask(there)
        record.done(1.5, 12.0, 2.25, everyone)
    record.skip("only 2 sites had values", 3)
    record.refusals["west"] = "it has no finished run"
    record.count("bytes_up", 1234)
    record.save()
    current.write(live=True, state="running")
    found = samples(metrics.server_metrics(world.server))
    assert 0 <= found.pop("fuels_live_step_age_seconds") < 60
    assert {name: value for name, value in found.items() if "_live_" in name} == {
        "fuels_live_active": 1,
        "fuels_live_steps_total": 2,
        "fuels_live_skipped_total": 3,
        **{f'fuels_live_site_added_total{{site="{site}"}}': 2 for site in everyone[:3]},
        'fuels_live_site_added_total{site="west"}': 1,
        'fuels_live_site_missed_total{site="west"}': 1,
        "fuels_live_sites": 3,
        "fuels_live_sites_missing": 1,
        "fuels_live_sites_refusing": 1,
        "fuels_live_clients": 12,
        "fuels_live_step_seconds": 2.25,
        "fuels_live_bytes_up_total": 1234,
        "fuels_live_bytes_down_total": 0,
    }
    (record.path).unlink()
    current.write(**before)


def test_a_site_shows_when_it_contributed(world: World) -> None:
    folder = SiteFolder(world.root / "sites" / "north")
    assert "fuels_site_live_age_seconds" not in samples(metrics.site_metrics(folder, {}))
    SiteRecords(folder).contributed("run", "2013-12-01 10:00", b"masked")
    assert samples(metrics.site_metrics(folder, {}))["fuels_site_live_age_seconds"] >= 0


def test_labels_are_escaped() -> None:
    text = metrics.Metrics()
    text.add("x", "gauge", "What.", [({"reason": 'a "b"\\\n'}, 0.5)])
    assert text.text().splitlines()[-1] == r'fuels_x{reason="a \"b\"\\\n"} 0.5'


def test_it_answers_on_loopback_only(tmp_path: Path) -> None:
    port, file = commands.free_port(), tmp_path / "server.toml"
    metrics.start(port, lambda: "fuels_x 1\n", lambda: "out of order", file)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        answer = client.get("/metrics")
        assert (answer.status_code, answer.text) == (200, "fuels_x 1\n")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        answer = client.get("/health")
        assert (answer.status_code, answer.text) == (503, "out of order\n")
        assert client.get("/other").status_code == 404
        assert client.post("/metrics").status_code == 501
    other = socket.socket()
    with other, pytest.raises(OSError):
        other.connect(("127.0.0.2", port))
    with pytest.raises(FuelsError, match=rf"server.toml: cannot listen on metrics_port {port} "):
        metrics.start(port, str, str, file)


def test_the_dashboard_shows_metrics_that_exist(world: World) -> None:
    site = metrics.site_metrics(SiteFolder(world.root / "sites" / "south"), {"worker": True})
    text = metrics.server_metrics(world.server) + site
    offered = set(re.findall(r"# TYPE (fuels_\w+) ", text))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"fuels_\w+", target["expr"])
    }
    assert shown == offered
