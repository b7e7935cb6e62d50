"""A federation of real processes on loopback, with faults on demand.

What a site does wrong is in faulty_site.py, which starts the sites here: the package itself knows
nothing of it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import tomli_w
from typer.testing import CliRunner

from fuels.cli.commands import app
from fuels.config import Settings
from fuels.federation.flower import processes as processes_module
from fuels.federation.flower import runs
from fuels.federation.flower.commands import free_port, registered
from fuels.federation.flower.demo import federation
from fuels.federation.flower.folders import Rules, ServerConfig, ServerFolder, key_of
from fuels.federation.flower.processes import Processes, descendants
from fuels.federation.flower.runs import Current
from fuels.storage.checkpoint import load_state
from fuels.storage.run_folder import RunFolder
from helpers.flower_world import few_days, write_panel

FAULTY = Path(__file__).with_name("faulty_site.py")


def fuels(*arguments: object) -> str:
    """A command of the command line, which must succeed; what it prints, on one line."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


class Cluster:
    """A running federation."""

    def __init__(
        self,
        root: Path,
        server: ServerFolder,
        processes: Processes,
        relays: Mapping[str, Relay],
    ) -> None:
        self.root, self.server, self.processes, self.relays = root, server, processes, relays
        self.plan_file = root / "plan.json"

    def plan(self, faults: Mapping[str, str]) -> None:
        """`train 3 north`: what goes wrong at that site in that round.

        raise: an error. kill: the worker is killed with -9, with the request in its hands. hold
        SECONDS: the site has trained and answers so much later. until FILE: it answers once there
        is such a file next to the plan. claim SITE: the answer says that it comes from another
        site. poison: what is sent of a model is turned round.
        """
        for mark in self.root.glob("*.done"):
            mark.unlink()
        self.plan_file.write_text(json.dumps(faults))

    def happened(self, fault: str) -> bool:
        return (self.root / f"{fault.replace(' ', '-')}.done").exists()

    def submit(self, settings: Settings) -> str:
        run = runs.new_run(self.server, settings)
        runs.start(self.server)
        return run

    def state(self) -> str:
        return str(Current(self.server).read().get("state", ""))

    def history(self, run: str) -> list[dict[str, Any]]:
        return RunFolder(self.server.runs / run).history()

    def timings(self, run: str) -> list[dict[str, Any]]:
        lines = (self.server.runs / run / "timings.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def wait(self, what: Callable[[], bool], seconds: float, why: str) -> None:
        end = time.monotonic() + seconds
        while not what():
            if time.monotonic() > end:
                raise AssertionError(f"{why}: not within {seconds} s\n{self.logs()}")
            time.sleep(0.2)

    def finish(self, run: str, seconds: float) -> list[dict[str, Any]]:
        """Wait for the end of the run; its history."""
        over = ("finished", "failed", "stopped")
        self.wait(lambda: self.state() in over, seconds, f"run {run} did not end")
        current = Current(self.server).read()
        assert current["state"] == "finished", f"{current}\n{self.logs()}"
        return self.history(run)

    def site_run(self, site: str, run: str) -> Path:
        return self.root / "sites" / site / "runs" / run

    def trains(self, site: str, run: str, number: int) -> bool:
        """Whether a site has begun to train a round."""
        log = self.root / "sites" / site / "state" / "site.log"
        return log.exists() and f"run {run}, round {number}: " in log.read_text()

    def trained(self, site: str, run: str) -> int:
        """The last round that a site has finished training, by its file."""
        _, facts = load_state(self.site_run(site, run) / "state.safetensors")
        return int(facts["round"])

    def start_site(self, site: str) -> None:
        self.processes.start(site, ["site", str(self.root / "sites" / site)])

    def stop_site(self, site: str) -> None:
        process = self.processes.running.pop(site)
        process.terminate()
        process.wait(60)

    def kill_site(self, site: str) -> None:
        """kill -9 of all that belongs to a site, at once."""
        process = self.processes.running.pop(site)
        kill(process.pid, *descendants(process.pid))
        process.wait()

    def set_rules(self, rules: Rules) -> None:
        self._configure(replace(self.server.config, rules=rules))

    def exclude(self, site: str) -> None:
        config = self.server.config
        sites = {name: key for name, key in config.sites.items() if name != site}
        self._configure(replace(config, sites=sites))

    def _configure(self, config: ServerConfig) -> None:
        self.server.config_file.write_text(tomli_w.dumps(asdict(config)))

    def metrics(self, party: str) -> str:
        """The metrics of the server or of a site, which must be in order."""
        folder = self.root / "server" if party == "server" else self.root / "sites" / party
        (file,) = folder.glob("s*.toml")
        port = tomllib.loads(file.read_text())["metrics_port"]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            assert client.get("/health").text == "ok\n"
            return client.get("/metrics").text

    def logs(self) -> str:
        files = sorted(self.root.glob("*/state/*.log")) + sorted(
            self.root.glob("sites/*/state/*.log")
        )
        return "\n".join(f"== {file}\n{file.read_text()[-2000:]}" for file in files)


def kill(*ids: int) -> None:
    """kill -9, by id."""
    for number in ids:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Relay(threading.Thread):
    """Passes a site's connections on to the server and counts every byte, TLS included."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target, self.up, self.down = target, 0, 0
        self.counting = threading.Lock()  # connections are pumped side by side
        self.start()

    def run(self) -> None:
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            threading.Thread(target=self.pump, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self.pump, args=(far, near, "down"), daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(65536):
                with self.counting:
                    setattr(self, way, getattr(self, way) + len(data))
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()


def with_metrics(config: str) -> str:
    """A config file with a port for metrics."""
    assert "metrics_port = 0" in config
    return config.replace("metrics_port = 0", f"metrics_port = {free_port()}")


def status_of(running: Cluster, site: str) -> str:
    found = registered(running.server).get(key_of(running.server.config.sites[site]))
    return "unknown" if found is None else found.status


def all_online(running: Cluster) -> None:
    def there() -> bool:
        return {status_of(running, site) for site in running.server.config.sites} == {"online"}

    running.wait(there, 180, "not all sites are let in")


@contextmanager
def cluster(
    root: Path,
    sites: Mapping[str, Sequence[str]],
    rules: Rules,
    methods: Sequence[str] = ("fuels",),
    relays: bool = False,
) -> Iterator[Cluster]:
    """Start a federation whose sites share one file; with relays, their bytes are counted."""
    data = root.parent / f"{root.name}.csv"
    data.parent.mkdir(parents=True, exist_ok=True)
    write_panel(data, sorted(client for ids in sites.values() for client in ids))
    between: dict[str, Relay] = {}

    def prepare(_: Path) -> None:
        file = ServerFolder(root).config_file
        file.write_text(with_metrics(file.read_text()))
        config = ServerFolder(root).config
        for file in root.glob("sites/*/site.toml"):
            text = file.read_text().replace("keep_copies = false", "keep_copies = true")
            text = with_metrics(few_days(text.replace("threads = 0", "threads = 1")))
            if relays:
                relay = between[file.parent.name] = Relay(config.port)
                text = text.replace(config.address, f"127.0.0.1:{relay.port}")
            file.write_text(text)

    plain, launch = processes_module.LAUNCH, [sys.executable, "-P", str(FAULTY)]
    processes_module.LAUNCH = launch
    try:
        with federation(root, sites, str(data), methods, rules, prepare) as (server, processes):
            yield Cluster(root, server, processes, between)
    finally:
        processes_module.LAUNCH = plain
