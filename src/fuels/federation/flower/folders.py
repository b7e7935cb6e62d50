"""The folders of a federation: each party has a config file, keys and state.

server/   server.toml  ca.pem  server.pem  server.key  roster.json  app/  state/  runs/RUN/
site/     site.toml    ca.pem  site.key    site.pub    sums.key  sums.pub  state/  runs/RUN/

A site's raw data stay where they are; its folder only names the file. About a site's data, the
server's folder contains only what the site sent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TypeVar, cast

from fuels.config import Data, Engine, Settings, Sharing, merge
from fuels.errors import FuelsError
from fuels.storage.config_file import read_toml

log = logging.getLogger("fuels")
T = TypeVar("T")
MOST_EPSILON = 20.0  # of a site that states none; above it, nothing is guaranteed
LOG_SIZE, LOG_FILES = 5 * 2**20, 3  # bytes of a log file, and former ones that are kept
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


class RefusalError(FuelsError):
    """Why a site does not answer. The text is sent to the server, so it quotes no data."""


@dataclass(frozen=True)
class Rules:
    """When a round closes, and what counts in it."""

    deadline: float = 600.0  # seconds a round waits for its sites
    quorum: float = 0.5  # share of the asked sites that must answer
    attempts: int = 10  # per round, each up to a deadline, before the run stops
    staleness: int = 1  # rounds that an upload may be late
    join: float = 120.0  # seconds to wait for sites at the start and after a restart
    evaluate_every: int = 1  # rounds between evaluations after aggregation
    live_deadline: float = 60.0  # seconds that a step of a live series waits for other sites
    most_clients: int = 10_000  # clients that one site may claim
    most_periods: int = 4_000  # training periods that a site may claim: ten years of days


@dataclass(frozen=True)
class ServerConfig:
    """server.toml."""

    federation: str = ""
    host: str = "127.0.0.1"  # the interface the server listens on
    port: int = 9092
    control_port: int = 9093  # on loopback: the SuperLink, for the operator's commands
    address: str = ""  # HOST:PORT as the sites reach it
    contact: str = ""  # of the operator, shown to sites that are refused
    metrics_port: int = 0  # on loopback: health and metrics; 0: none
    rules: Rules = field(default_factory=Rules)
    sites: Mapping[str, str] = field(default_factory=dict)  # name: public key


@dataclass(frozen=True)
class Consent:
    """What may leave a site, and how large a message it reads."""

    methods: tuple[str, ...] = ("fuels",)
    metrics: bool = True  # error figures of training and validation
    # Arrays computed from raw values (FedDA's set), or with rows for every training period (the
    # concatenation prototype of FUELS, options.periodic = false).
    raw_derived: bool = False
    # A prototype that averages fewer training periods reveals more about single values, so it also
    # needs `raw_derived`. The server chooses period and split.
    least_periods: int = 7
    # Likewise for a prototype with more rows than this; 288: a day in steps of 5 minutes.
    longest_period: int = 288
    # A run that takes this site's prototypes needs privacy.secret; see docs/explanation/privacy.md.
    hidden: bool = False
    least_noise: float = 0.0  # standard deviation of the noise on prototypes
    most_prototypes: int = 0  # of a client in a run; 0: any number
    # Uploads may leave without masks. If false, only runs with privacy.masked may use this site.
    unmasked: bool = True
    # Add to the shared statistics of a run, masked: the server sees only totals over at least three
    # sites.
    sums: bool = False
    live_mean: bool = False  # the same for the mean of all clients at each step
    # Only sums with noise, and all runs together may spend at most this epsilon; 0: sums may be
    # exact. The other three must be those of the run; see docs/explanation/guarantee.md.
    epsilon: float = 0.0
    delta: float = 1e-5
    unit: str = "hour"
    relation: str = "removed"
    min_clients: int = Sharing.min_clients  # clients that the sites of a sum must have together
    largest_message_mb: int = 256  # largest message from the server that the site reads
    keep_copies: bool = False  # keep every message that leaves, in runs/RUN/sent/

    @property
    def largest_epsilon(self) -> float:
        """What all noised sums together may spend."""
        return self.epsilon or MOST_EPSILON


@dataclass(frozen=True)
class SiteConfig:
    """site.toml."""

    federation: str = ""
    name: str = ""
    server: str = ""  # HOST:PORT
    metrics_port: int = 0  # on loopback: health and metrics; 0: none
    consent: Consent = field(default_factory=Consent)
    data: Data = field(default_factory=lambda: Data(source=""))
    engine: Engine = field(default_factory=Engine)


class ServerFolder:
    """The server's folder."""

    def __init__(self, path: Path) -> None:
        inner = path / "server"
        self.path = (inner if (inner / "server.toml").is_file() else path).resolve()
        self.config_file = self.path / "server.toml"
        self.ca, self.certificate = self.path / "ca.pem", self.path / "server.pem"
        self.key, self.roster = self.path / "server.key", self.path / "roster.json"
        self.app, self.keys = self.path / "app", self.path / "keys"
        self.state, self.runs = self.path / "state", self.path / "runs"
        self.database = self.state / "flower.db"
        self.home = self.state / "flower"
        self.current = self.state / "current.json"
        self.revoked = self.state / "revoked.json"  # keys that were revoked, with their sites
        self.figures = self.state / "metrics.json"  # of the current run
        self.audit = self.state / "audit.jsonl"
        self.busy = self.state / "busy.lock"  # held by the process that runs the rounds
        # Notices, by node: a message is there for it; it has replied.
        self.posted, self.replied = self.state / "posted", self.state / "replied"

    @property
    def config(self) -> ServerConfig:
        config = _read(ServerConfig(), self.config_file, "server")
        check_listen(config.host, f"{self.config_file}: host")
        for key, port in (("port", config.port), ("control_port", config.control_port)):
            if not 1 <= port <= 65535:
                raise FuelsError(f"{self.config_file}: {key} {port} must be between 1 and 65535")
        _check_metrics(config.metrics_port, self.config_file)
        _check_rules(config.rules, self.config_file)
        owner: dict[str, str] = {}
        for name, line in config.sites.items():
            check_name(name, f"{self.config_file}: site")
            first = owner.setdefault(key_of(line), name)
            if first != name:
                raise FuelsError(f"{self.config_file}: sites {first} and {name} have the same key")
        return config


class SiteFolder:
    """A site's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.config_file = self.path / "site.toml"
        self.ca, self.key = self.path / "ca.pem", self.path / "site.key"
        self.public_key = self.path / "site.pub"
        self.sums_key, self.sums_public = self.path / "sums.key", self.path / "sums.pub"
        self.state, self.runs = self.path / "state", self.path / "runs"
        self.home = self.state / "flower"
        self.figures = self.state / "metrics.json"
        self.audit = self.state / "audit.jsonl"
        self.arrived = self.state / "arrived"  # a notice: the SuperNode has a message
        self.socket = "worker.sock"  # in `state`; a path to it may be longer than systems allow

    @property
    def config(self) -> SiteConfig:
        config = _read(SiteConfig(), self.config_file, "site")
        check_name(config.name, f"{self.config_file}: name")
        _check_metrics(config.metrics_port, self.config_file)
        if config.consent.min_clients < 1:
            raise FuelsError(f"{self.config_file}: consent.min_clients must be at least 1")
        if not 0 <= config.consent.epsilon <= MOST_EPSILON:
            raise FuelsError(
                f"{self.config_file}: consent.epsilon must be above 0 and at most"
                f" {MOST_EPSILON:g}, or 0 for no demand"
            )
        return config

    def config_for(self, data: str) -> SiteConfig:
        """The config, with `data` as the source if it is given."""
        config = self.config
        source = data or config.data.source
        if not source:
            raise FuelsError(f"{self.config_file}: data.source is empty; give --data FILE")
        if not source.startswith("synthetic:"):
            source = str((self.path / source).resolve())  # relative to the folder
        file = config.data.inputs_file
        file = str((self.path / file).resolve()) if file else ""
        return replace(config, data=replace(config.data, source=source, inputs_file=file))


def key_of(line: str) -> str:
    """The type and value of a public key, without the comment."""
    return " ".join(line.split()[:2])


def check_listen(host: str, place: str) -> None:
    """Refuse `::`: it means all interfaces of IPv6 but none of IPv4, which the server uses."""
    if host == "::":
        raise FuelsError(
            f"{place} {host!r} excludes IPv4; use 0.0.0.0 for all interfaces, or a single address"
        )


def _check_metrics(port: int, file: Path) -> None:
    if not 0 <= port <= 65535:
        raise FuelsError(f"{file}: metrics_port {port} must be 0 (none) or a port up to 65535")


def _check_rules(rules: Rules, file: Path) -> None:
    if not 0 < rules.quorum <= 1:
        raise FuelsError(f"{file}: rules.quorum must be more than 0 and at most 1")
    for name in ("deadline", "live_deadline"):
        if not getattr(rules, name) > 0:
            raise FuelsError(f"{file}: rules.{name} must be a number of seconds above 0")
    for name in ("join", "staleness"):
        if not getattr(rules, name) >= 0:
            raise FuelsError(f"{file}: rules.{name} must not be negative")
    for name in ("attempts", "evaluate_every", "most_clients", "most_periods"):
        if getattr(rules, name) < 1:
            raise FuelsError(f"{file}: rules.{name} must be at least 1")


def check_name(name: str, place: str) -> str:
    """Names become folders and parts of commands, so only plain characters are allowed."""
    if not NAME.fullmatch(name):
        raise FuelsError(
            f"{place} {name!r} must consist of at most 31 lower-case letters, digits and dashes"
        )
    return name


def _read(default: T, path: Path, what: str) -> T:
    if not path.is_file():
        raise FuelsError(f"{path.parent}: not a {what} folder: {path.name} is missing")
    changes: dict[str, Any] = read_toml(path)
    # `merge` works on any dataclass of settings, although its signature says Settings.
    return cast(T, merge(cast(Settings, default), changes, str(path)))


def set_up_log(path: Path | None = None) -> None:
    """Log to stderr and, if a path is given, to a file that rotates."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(RotatingFileHandler(path, maxBytes=LOG_SIZE, backupCount=LOG_FILES))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.handlers = handlers
    log.setLevel(logging.INFO)
    log.propagate = False
