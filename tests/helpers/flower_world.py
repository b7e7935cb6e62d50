"""A post without a network: sites answer in this process, and every byte can be looked at."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import Result
from typer.testing import CliRunner

from fuels.cli.commands import app
from fuels.config import Settings, merge
from fuels.errors import FuelsError
from fuels.federation.codec import decode
from fuels.federation.flower.folders import RefusalError, Rules, ServerFolder, SiteFolder
from fuels.federation.flower.inbox import Time
from fuels.federation.flower.messages import read_upload
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.server import serve
from fuels.federation.flower.worker import Worker
from fuels.runs.settings import ResolvedSettings, resolve
from fuels.storage.checkpoint import load_state
from fuels.storage.run_folder import RunFolder

NEVER = float("inf")
SITES = {"north": ["a", "d"], "south": ["b", "e"], "east": ["c", "f"]}
LIMIT = 2**24  # bytes of any message here


def fuels(*arguments: object) -> Result:
    """A command of the command line, which must succeed; its errors are raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, FuelsError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def settings(method: str = "fuels", rounds: int = 3, **training: object) -> ResolvedSettings:
    """Small enough for a test, and every mechanism is in it."""
    changes = {
        "method": method,
        "windows": {"split": "8/2/2"},
        "model": {"hidden": 8},
        "training": {"rounds": rounds, **training},
    }
    return resolve(merge(Settings(), changes, "test"))


def write_panel(path: Path, ids: Sequence[str], days: int = 12) -> None:
    """Hourly values with a day in them, one column of a CSV per client and row."""
    rng = np.random.default_rng(7)
    lines = ["time,client,value"]
    hours = np.arange(24 * days)
    for i, client in enumerate(ids):
        wave = 10 + 4 * np.sin(2 * np.pi * (hours + 3 * i) / 24) + rng.normal(0, 0.5, len(hours))
        for hour, value in zip(hours, wave, strict=True):
            stamp = np.datetime64("2024-01-01T00") + np.timedelta64(int(hour), "h")
            lines.append(f"{stamp}:00,{client},{value:.4f}")
    path.write_text("\n".join(lines) + "\n")


def make_federation(
    root: Path, clients: Mapping[str, Sequence[str]], methods: Sequence[str], rules: Rules
) -> ServerFolder:
    """Folders of a federation whose sites share one CSV, each reading its own clients."""
    provision(root, "test", list(clients), "127.0.0.1", 9, methods=methods, rules=rules)
    data = root / "panel.csv"
    write_panel(data, sorted(c for ids in clients.values() for c in ids))
    for site, ids in clients.items():
        file = root / "sites" / site / "site.toml"
        listed = ", ".join(f'"{client}"' for client in ids)
        replacement = f'[data]\nsource = "{data}"\nids = [{listed}]'
        text = file.read_text().replace('[data]\nsource = ""', replacement)
        file.write_text(few_days(text.replace("threads = 0", "threads = 1")))
    return ServerFolder(root)


def few_days(config: str) -> str:
    """A site's config file, with consent to prototypes of the few days that a test has."""
    assert "least_periods = 7" in config
    return config.replace("least_periods = 7", "least_periods = 1")


@dataclasses.dataclass
class Sent:
    site: str
    kind: str
    number: int
    content: bytes
    due: float  # when its reply arrives
    reply: bytes | FuelsError


class MemoryNetwork:
    """Answers through real workers; `fate` may delay, drop or replace what a site says."""

    def __init__(self, root: Path, sites: Sequence[str], run_settings: Settings) -> None:
        self.root, self.settings = root, run_settings
        self.there = set(sites)
        self.time = 0.0
        self.waiting: dict[str, Sent] = {}
        self.sent: list[tuple[str, str, int, bytes]] = []  # site, kind, round, bytes down
        self.got: list[tuple[str, str, int, bytes]] = []  # and bytes up
        self.fate: Callable[[str, str, int, bytes], tuple[float, bytes | str]] = (
            lambda site, kind, number, reply: (0.0, reply)
        )

    def clock(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def connected(self) -> set[str]:
        return self.there & self.allowed()

    def allowed(self) -> set[str]:
        return set(ServerFolder(self.root).config.sites)

    def send(self, contents: Mapping[str, bytes], kind: str, number: int, ttl: float) -> list[str]:
        tickets = []
        for site, content in contents.items():
            ticket = f"{len(self.sent)}"
            self.sent.append((site, kind, number, content))
            try:
                worker = Worker(SiteFolder(self.root / "sites" / site), self.settings)
                reply: bytes | str = worker.answer(content, made=self.time)
            except FuelsError as error:
                reply = str(error)
            delay = 0.0
            if isinstance(reply, bytes):
                self.got.append((site, kind, number, reply))
                delay, reply = self.fate(site, kind, number, reply)
            came = reply if isinstance(reply, bytes) else RefusalError(reply)
            self.waiting[ticket] = Sent(site, kind, number, content, self.time + delay, came)
            tickets.append(ticket)
        return tickets

    def collect(self, tickets: Sequence[str]) -> dict[str, bytes | FuelsError]:
        due = [t for t in tickets if t in self.waiting and self.waiting[t].due <= self.time]
        return {ticket: self.waiting.pop(ticket).reply for ticket in due}


class World:
    """A federation of three sites in memory."""

    def __init__(self, root: Path, run_settings: Settings, **rules: Any) -> None:
        self.root, self.settings = root, resolve(run_settings)
        chosen = Rules(**{"deadline": 10.0, "join": 5.0, "attempts": 2, **rules})
        methods = ["fuels", run_settings.method]
        self.server: ServerFolder = make_federation(root, SITES, methods, chosen)
        self.network = MemoryNetwork(root, list(SITES), self.settings)

    def run(self, name: str = "run") -> list[dict[str, Any]]:
        serve(self.network, self.server, name, self.settings, self.time)
        return self.history(name)

    @property
    def time(self) -> Time:
        return Time(self.network.clock, self.network.sleep)

    def history(self, name: str = "run") -> list[dict[str, Any]]:
        return RunFolder(self.server.runs / name).history()

    def uploads(self, number: int) -> dict[str, Any]:
        """What each client sent in a round: client, array: numbers."""
        found: dict[str, Any] = {}
        for _, kind, at, content in self.network.got:
            if kind == "train" and at == number:
                upload = read_upload(decode(content, LIMIT))
                for row, client in enumerate(upload.clients):
                    found[client] = {name: a[row] for name, a in upload.arrays.items()}
        return found

    def summary(self, name: str = "run") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.server.runs / name / "summary.json").read_text())
        return found

    def give_data(self, site: str, days: int) -> None:
        """From now on a site has a file of its own, with its clients and so many days."""
        folder = self.root / "sites" / site
        write_panel(folder / "own.csv", SITES[site], days)
        file = folder / "site.toml"
        file.write_text(file.read_text().replace(str(self.root / "panel.csv"), "own.csv"))

    def take_out(self, site: str) -> None:
        """The operator takes a site out of server.toml."""
        file = self.server.config_file
        lines = file.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"{site} = ")]
        assert len(kept) == len(lines) - 1
        file.write_text("".join(kept))

    def state(self, name: str = "run") -> dict[str, Any]:
        return load_state(self.server.runs / name / "server.safetensors")[0]


Fate = Callable[[str, str, int, bytes], tuple[float, bytes | str]]


def fate(at: int, site: str, delay: float = 0.0, becomes: Any = None) -> Fate:
    """Something happens to one site's upload of one round."""

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if kind == "train" and (who, number) == (site, at):
            return delay, reply if becomes is None else becomes(reply)
        return 0.0, reply

    return decide
