"""Operators at a federation of real processes on loopback, and strangers who are not let in."""

from __future__ import annotations

import json
import socket
import sqlite3
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fuels.cli.commands import app
from fuels.data.writers import write_panel
from fuels.federation.flower import commands
from fuels.federation.flower.folders import Rules, SiteFolder
from fuels.federation.flower.live_record import LiveRecord
from fuels.federation.flower.pki import make_site_key
from fuels.federation.flower.processes import descendants
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.status import live_facts
from helpers.cluster import Cluster, all_online, cluster, fuels, kill
from helpers.flower_world import SITES, settings
from helpers.live_world import RUN, LiveWorld

pytest.importorskip("flwr")
pytestmark = pytest.mark.operations

RULES = Rules(deadline=120.0, join=120.0, quorum=0.3, evaluate_every=5)
LONG = 900.0  # seconds any run may take on a busy machine


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("operators") / "fed"
    with cluster(root, SITES, RULES) as started:
        all_online(started)
        yield started


def test_what_operators_do(running: Cluster) -> None:
    """Status, stop and resume against a running server, then a forecast at a site alone."""
    server = running.server.path
    fuels("federation", "run", server, "--rounds", 4, "--detach", "--set", "model.hidden=8",
          "--set", "windows.split=8/2/2")  # fmt: skip
    found = json.loads(fuels("federation", "status", server, "--json"))
    run = found["run"]
    assert found["listening"] and found["rounds"] == 4
    assert {found["sites"][site] for site in SITES} == {"online"}
    running.wait(lambda: len(running.history(run)) >= 1, LONG, "round 1 did not end")
    # Every site has its message of round 2: Flower can miscount the replies of a SuperNode that
    # receives a message just as its run is stopped.
    started = partial(running.trains, run=run, number=2)
    running.wait(lambda: all(map(started, SITES)), LONG, "round 2 did not begin at every site")
    assert "is stopped" in fuels("federation", "stop", server)
    assert running.state() == "stopped" and len(running.history(run)) < 4
    assert "is finished" in fuels("federation", "run", server, "--resume")
    assert [line["round"] for line in running.history(run)] == [1, 2, 3, 4]
    assert all(line["clients"] == 6 for line in running.history(run))
    table = running.root / "forecast.csv"
    data = running.root.parent / f"{running.root.name}.csv"
    fuels("forecast", running.site_run("north", run), "--data", data, "--horizon", 3,
          "--out", table)  # fmt: skip
    assert set(pl.read_csv(table)["client"]) == {"a", "d"}


def test_a_live_series_survives_kills(running: Cluster, tmp_path: Path) -> None:
    """While a step is open, a site and the server's process are killed and a site is restarted: no
    wrong sum, no second reply, and the next step has all three sites again."""
    world = LiveWorld.in_cluster(running.root, dict.fromkeys(SITES, 5))
    server, everyone = world.server, sorted(SITES)

    def step(given: int) -> None:
        """Wait for the sum of a step, which is that of all sites' values."""
        moment = world.panel.times[given] + world.panel.standard_offset
        done = [partial(world.knows_sum, site, moment) for site in SITES]
        running.wait(lambda: all(each() for each in done), LONG, f"step {given} has no sum")
        record = LiveRecord.load(world.run_folder)
        assert tuple(record.sums[-1]) == pytest.approx(world.expected(given), abs=1e-6)
        assert record.last["sites"] == everyone

    fuels("federation", "live", server.path, "--detach")
    newest = world.given["north"] - 1
    step(newest)
    world.give()
    asked = partial(live_facts, server, RUN)
    running.wait(lambda: bool(asked()["asked"]), LONG, "the next step was not asked for")
    running.kill_site("south")  # perhaps with the request in its hands
    below = descendants(running.processes.running["server"].pid)
    kill(*(n for n in below if "flwr-serverapp" in Path(f"/proc/{n}/cmdline").read_text()))
    running.start_site("south")
    running.stop_site("north")
    running.start_site("north")
    data = tmp_path / "newest.csv"
    write_panel(world.newest("east"), data)
    world.give("north", "south")
    made = CliRunner().invoke(
        app, ["forecast", str(running.site_run("east", RUN)), "--data", str(data), "--wait", "300"]
    )
    assert made.exit_code == 0 and "did not arrive" not in made.output, made.output
    world.given["east"] += 1
    step(newest + 2)
    # The open step has the sum of all, too, unless a site came back after its deadline.
    total, count = LiveRecord.load(world.run_folder).sums[-2]
    skipped = live_facts(server, RUN)["skipped"]
    if skipped:
        assert np.isnan(total) and count == 0 and "no reply" in skipped[0]["reason"]
    else:
        assert (total, count) == pytest.approx(world.expected(newest + 1), abs=1e-6)
    for site in SITES:  # one reply for each step, and no mask twice
        with closing(sqlite3.connect(world.site_folder(site) / "state" / "sums.db")) as database:
            replies = database.execute("SELECT step, words FROM answers").fetchall()
        assert len({moment for moment, _ in replies}) == len({words for _, words in replies})
        assert len(replies) in ((2, 3) if skipped else (3,))
    assert "live series running" in fuels("federation", "status", server.path)
    assert "live continues it" in fuels("federation", "stop", server.path)


def test_strangers_are_not_let_in(running: Cluster, tmp_path: Path) -> None:
    """An unregistered key, a false name, a wrong authority, plaintext: each for just that reason.

    And the others train on.
    """
    running.plan({"train 2 north": "claim south"})
    run = running.submit(settings(rounds=3))
    other = tmp_path / "other"
    provision(other, "other", ["north"], "127.0.0.1", running.server.config.port)
    true = SiteFolder(running.root / "sites" / "north")

    def superlink(words: str) -> list[str]:
        """Lines of the SuperLink's own log."""
        lines = (running.root / "server.log").read_text(errors="replace").splitlines()
        return [line for line in lines if words in line]

    def attempt(name: str, *reasons: str, **changes: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        make_site_key(folder)
        command = commands.supernode(true, "", commands.free_port())
        at = command.index("--auth-supernode-private-key")
        command[at + 1] = changes.get("key", str(folder / "site.key"))
        if "ca" in changes:
            command[command.index("--root-certificates") + 1] = changes["ca"]
        if "insecure" in changes:
            del command[at : at + 2]
            at = command.index("--root-certificates")
            command[at : at + 2] = ["--insecure"]
        extra = {**commands.site_environment(true), "FLWR_HOME": str(folder / "home")}
        output = folder / "output"  # a file: its own child would keep a pipe open
        with output.open("w") as file:
            process = subprocess.Popen(
                [*command, "--max-retries", "1"],
                env=commands.environment(extra),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        text = output.read_text()
        # It came as far as the server, and no further; Flower's exit codes name the stage.
        assert process.returncode == 1 and "Exit Code: 305" in text, text
        said = (f"Failed to initialize the connection to the SuperLink.\n{why}" for why in reasons)
        assert any(words in text for words in said), text
        assert "SuperNode ID" not in text

    running.wait(lambda: len(running.history(run)) >= 1, LONG, "round 1 did not end")  # all are in
    activations = len(superlink("/v1/fleet/activate-node"))
    attempt("unregistered", "[code: 2004] The request is not signed by a key in server.toml")
    attempt(
        "authority",
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer",
        key=str(true.key),
        ca=str(other / "authority" / "ca.pem"),
    )
    attempt(
        "plaintext",
        "Server disconnected without sending a response.",
        "[Errno 104] Connection reset by peer",  # the same, seen a moment earlier
        insecure="yes",
    )
    assert len(superlink("/v1/fleet/activate-node")) == activations  # none came through the gateway
    port = running.server.config.port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.settimeout(30)
        assert plain.recv(200)[:1] in (b"", b"\x15")  # closed, or TLS's own word for an error
    context = ssl.create_default_context(cafile=str(other / "authority" / "ca.pem"))
    with (
        pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"),
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1"),
    ):
        pass

    # A site reaches what sites need and not the interface that submits runs.
    trusted = ssl.create_default_context(cafile=str(true.ca))
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/../control/x"):
        with httpx.Client(verify=trusted, timeout=30) as client:
            assert client.post(f"https://127.0.0.1:{port}{path}").status_code == 403

    history = running.finish(run, LONG)
    assert [line["clients"] for line in history] == [6, 4, 6]
    false = "it claims to come from site 'south', but its key is another site's"
    assert history[1]["failures"] == [f"north: upload refused: {false}"]
    assert history[2]["failures"] == []
