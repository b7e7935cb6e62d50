"""A federation of real processes on loopback: the same results, failures, strangers, bytes.

One server and three sites serve most tests, one after the other; each run is a new one to them.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tomli_w
from tests.federation.cluster import Cluster, children, cluster, kill
from tests.federation.helpers import settings

from fuels.build import build
from fuels.config import Engine, Settings, merge
from fuels.federation.checkpoint import load_state
from fuels.federation.codec import decode
from fuels.federation.flower import commands
from fuels.federation.flower.found import found
from fuels.federation.flower.keys import make_site_key
from fuels.federation.flower.letters import read_upload
from fuels.federation.flower.parties import Rules, SiteFolder

pytest.importorskip("flwr")
pytestmark = pytest.mark.federation

SITES = {"north": ["a", "d"], "south": ["b", "e"], "east": ["c", "f"]}
RULES = Rules(deadline=120.0, join=120.0, quorum=0.3)
LONG = 900.0  # seconds any run may take on a busy machine
BATCHES = 5  # periods of 8 training days that have samples


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("processes") / "fed"
    with cluster(root, SITES, RULES, ("fuels", "fedavg")) as started:
        started.plan({})
        yield started


def set_rules(running: Cluster, rules: Rules) -> None:
    file = running.server.config_file
    config = asdict(replace(running.server.config, rules=rules))
    file.write_text(tomli_w.dumps(config))


def start_site(running: Cluster, site: str) -> None:
    running.processes.start(site, ["site", str(running.root / "sites" / site)])


def steps(running: Cluster, site: str, run: str) -> set[int]:
    """How many batches each client of a site was trained on in all."""
    arrays, _ = load_state(running.site_run(site, run) / "state.safetensors")
    return set(arrays["site/slots.encoder.step"].tolist())


def local(running: Cluster, run_settings: Settings) -> tuple[Any, dict[str, Any]]:
    """The same training on one machine, and what its clients sent in round 1."""
    source = {"data": {"source": str(running.root.parent / f"{running.root.name}.csv")}}
    job = build(merge(run_settings, source, "test"), Engine(threads=1))
    sent: dict[str, Any] = {}
    original = job.site.train

    def spy(number: int, clients: Any, download: Any) -> Any:
        upload, report = original(number, clients, download)
        if number == 1:
            for row, client in enumerate(upload.clients):
                sent[client] = {name: array[row] for name, array in upload.arrays.items()}
        return upload, report

    job.site.train = spy  # type: ignore[method-assign]
    job.loop.run()
    return job, sent


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_local_engine_and_flower_agree(running: Cluster, method: str) -> None:
    chosen = settings(method, rounds=5)
    set_rules(running, replace(RULES, evaluate_every=5))
    run = running.submit(chosen)
    history = running.finish(run, LONG)
    job, sent = local(running, chosen)
    for site in SITES:
        content = (running.site_run(site, run) / "sent" / "train-00001.bin").read_bytes()
        upload = read_upload(decode(content, 2**26))
        for row, client in enumerate(upload.clients):
            for name, array in upload.arrays.items():
                np.testing.assert_allclose(array[row], sent[client][name], atol=1e-5)
    assert history[-1]["val_mse"] == pytest.approx(float(job.loop.val_mse.mean()), rel=0.01)
    assert all(line["failures"] == [] for line in history)


def test_a_site_killed_in_mid_round(running: Cluster) -> None:
    """The round closes at its deadline, the site comes back with its models, nothing is doubled.

    Flower lets a killed node in again when two of its heartbeats are missing, after a minute.
    """
    deadline = 60.0
    set_rules(running, replace(RULES, deadline=deadline))
    running.plan({"train 2 north": "sleep 600"})
    run = running.submit(settings(rounds=9))
    asleep = running.root / "north.asleep"
    running.wait(asleep.exists, LONG, "round 2 did not reach north")
    node = running.supernode("north")
    kill(node, *children(node))
    history = running.finish(run, LONG)
    set_rules(running, RULES)
    assert running.timings(run)[1]["train"] <= deadline + 2.0
    assert history[0]["clients"] == 6 and history[1]["clients"] == 4 and history[-1]["clients"] == 6
    assert history[1]["failures"][0].startswith("north: ")
    trained = [line["round"] for line in history if line["clients"] == 6]
    copies = sorted(p.name for p in (running.site_run("north", run) / "sent").glob("train*"))
    assert copies == [f"train-{number:05d}.bin" for number in trained]
    assert steps(running, "north", run) == {len(trained) * BATCHES}
    assert steps(running, "south", run) == {9 * BATCHES}
    assert (running.site_run("north", run) / "models.safetensors").exists()


def test_the_server_killed_at_a_random_round_goes_on_by_itself(running: Cluster) -> None:
    running.plan({})
    chosen = settings(rounds=5)
    at = int(np.random.default_rng().integers(1, 4))
    run = running.submit(chosen)
    running.wait(lambda: len(running.history(run)) >= at, LONG, f"round {at} was not reached")
    server = running.processes.running["server"]
    kill(server.pid)
    server.wait()
    running.processes.start("server", ["server", str(running.server.path)])
    history = running.finish(run, LONG)
    job, _ = local(running, chosen)
    assert [line["round"] for line in history] == [1, 2, 3, 4, 5], f"killed after round {at}"
    assert all(line["clients"] == 6 and line["failures"] == [] for line in history)
    for site in SITES:
        assert steps(running, site, run) == {5 * BATCHES}
    prototypes = load_state(running.server.runs / run / "server.safetensors")[0]["prototypes"]
    np.testing.assert_allclose(prototypes, job.loop.server.prototypes, atol=1e-4)
    assert history[-1]["val_mse"] == pytest.approx(float(job.loop.val_mse.mean()), rel=1e-3)


def test_a_site_absent_from_the_start(running: Cluster) -> None:
    away = running.processes.running.pop("east")
    away.terminate()
    away.wait(30)
    set_rules(running, replace(RULES, join=30.0))
    history = running.finish(running.submit(settings(rounds=2)), LONG)
    set_rules(running, RULES)
    start_site(running, "east")
    assert [line["clients"] for line in history] == [4, 4]


def test_thirty_percent_of_the_sites_fail_at_random_for_twenty_rounds(running: Cluster) -> None:
    rng = np.random.default_rng(11)
    faults: dict[str, str] = {}
    for number in range(1, 21):
        failing = [site for site in SITES if rng.random() < 0.3][:2]
        for site in failing:
            faults[f"train {number} {site}"] = "raise"
    for key in list(faults)[3::6]:
        faults[key] = "die"
    assert len(faults) > 12
    running.plan(faults)
    set_rules(running, replace(RULES, deadline=45.0))
    run = running.submit(settings(rounds=20))
    history = running.finish(run, LONG)
    set_rules(running, RULES)
    running.plan({})
    assert [line["round"] for line in history] == list(range(1, 21))
    for key in faults:
        _, number, site = key.split()
        failures = history[int(number) - 1]["failures"]
        assert any(text.startswith(f"{site}: ") for text in failures), key


def test_strangers_are_not_let_in(running: Cluster, tmp_path: Path) -> None:
    """An unregistered key, a false name, a wrong authority, plaintext; and the others train on."""
    other = tmp_path / "other"
    found(other, "other", ["north"], "127.0.0.1", running.server.config.port)
    true = SiteFolder(running.root / "sites" / "north")

    def attempt(name: str, **changes: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        if "key" not in changes:
            make_site_key(folder)
        command = commands.supernode(true, "", commands.free_port())
        at = command.index("--auth-supernode-private-key")
        command[at + 1] = changes.get("key", str(folder / "site.key"))
        if "ca" in changes:
            command[command.index("--root-certificates") + 1] = changes["ca"]
        if "insecure" in changes:
            at = command.index("--root-certificates")
            command[at : at + 2] = ["--insecure"]
            at = command.index("--auth-supernode-private-key")
            del command[at : at + 2]
        extra = {**commands.QUIET, "FLWR_HOME": str(folder / "home")}
        output = folder / "output"  # a file: its own child would keep a pipe open
        with output.open("w") as file:
            process = subprocess.Popen(
                [*command, "--max-retries", "2"],
                env=commands.environment(extra),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.returncode != 0
        assert "SuperNode ID" not in output.read_text()
        return output.read_text()

    assert "2004" in attempt("unregistered")
    attempt("authority", key=str(true.key), ca=str(other / "authority" / "ca.pem"))
    attempt("plaintext", insecure="yes")
    port = running.server.config.port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.settimeout(30)
        assert b"200" not in plain.recv(200)
    context = ssl.create_default_context(cafile=str(other / "authority" / "ca.pem"))
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1"),
    ):
        pass

    # A site reaches what sites need and not the interface that submits runs.
    trusted = ssl.create_default_context(cafile=str(true.ca))
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/../control/x"):
        with httpx.Client(verify=trusted, timeout=30) as client:
            assert client.post(f"https://127.0.0.1:{port}{path}").status_code == 403

    running.plan({"train 2 north": "claim south"})
    history = running.finish(running.submit(settings(rounds=2)), LONG)
    running.plan({})
    assert [line["clients"] for line in history] == [6, 4]
    assert "claims to come from site 'south'" in history[1]["failures"][0]


# -- bytes -----------------------------------------------------------------------------------------


class Relay(threading.Thread):
    """Passes a site's connections on to the server and counts every byte, TLS included."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target, self.up, self.down = target, 0, 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            threading.Thread(target=self.pump, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self.pump, args=(far, near, "down"), daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(65536):
                setattr(self, way, getattr(self, way) + len(data))
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_bytes_on_the_wire(tmp_path: Path, method: str) -> None:
    """100 clients in 4 sites at the paper's size: bytes per client and round."""
    ids = [f"c{i:03d}" for i in range(100)]
    sites = {f"site-{i}": ids[i::4] for i in range(4)}
    rules = replace(RULES, deadline=300.0, quorum=1.0, evaluate_every=10)
    with cluster(tmp_path / "fed", sites, rules, [method]) as running:
        relays = {site: Relay(running.server.config.port) for site in sites}
        for site, relay in relays.items():
            running.processes.running.pop(site).terminate()
            file = running.root / "sites" / site / "site.toml"
            address = running.server.config.address
            file.write_text(file.read_text().replace(address, f"127.0.0.1:{relay.port}"))
        time.sleep(5)
        for site in sites:
            start_site(running, site)
        chosen = merge(settings(method, rounds=4), {"model": {"hidden": 128}}, "test")
        run = running.submit(chosen)
        marks = {}
        for number in (1, 3):
            running.wait(
                lambda n=number: len(running.history(run)) >= n, LONG, "a round is missing"
            )
            marks[number] = (
                sum(relay.up for relay in relays.values()),
                sum(relay.down for relay in relays.values()),
            )
        running.finish(run, LONG)
    up, down = ((marks[3][i] - marks[1][i]) / (2 * 100) for i in (0, 1))
    print(f"{method}: {up:.0f} bytes up, {down:.0f} bytes down per client and round")
    if method == "fuels":
        assert 6144 * 4 <= up <= 1.1 * 6144 * 4
        assert 2 * 6144 * 4 <= down <= 2 * 1.1 * 6144 * 4
    else:
        assert up > 100_000 * 4
