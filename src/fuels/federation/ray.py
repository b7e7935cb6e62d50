"""Sites as Ray actors, on this machine or on a cluster; the server runs in this process.

Each actor holds a contiguous share of the clients and trains it with the same `Site` as the local
engine. An actor may die at any moment. Therefore each call also returns the actor's new state, as a
second value that stays in the object store of the actor's machine: this process owns it, so it
outlives the actor, and it is fetched only when needed (the final models). If an actor dies, a new
one starts from the last state and the call is repeated. No random number depends on who computes
it, so the result is the same.

For a checkpoint, every actor writes the state of its clients to a file in the run folder, and only
the file's checksum comes to this process. If an actor does not see the folder (a cluster without
shared disks), the states are fetched instead.

Only this module uses Ray, and it imports Ray when a transport is created.
"""

from __future__ import annotations

import os
import secrets
import socket
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Integers
from fuels.config import Engine
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.federation.site import Report, Site
from fuels.federation.transport import Failure, Reply
from fuels.methods.base import Method
from fuels.methods.messages import Download, Upload
from fuels.storage.checkpoint import save_state, stamp
from fuels.training.runtime import available_cores, set_up
from fuels.version import not_installed

State = dict[str, NDArray[Any]]

STARTS = 3  # attempts per call: an actor that dies this often is not restarted
PATIENCE = 120.0  # seconds for all actors to be scheduled and start

# Read by Ray on import. No usage report, and no report of a dead actor on stdout, where it would
# corrupt a --json summary.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# With 0, Ray stays on the loopback address. Otherwise it replaces 127.0.0.1 by the machine's own
# address and listens on the network.
CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class SiteActor:
    """The actor: a site. Every call returns its result and the state after it."""

    def __init__(
        self, work: tuple[Dataset, Method], keep: str, engine: Engine, state: State | None
    ) -> None:
        dataset, method = work
        self.site = Site(dataset, method, keep=keep, threads=set_up(engine), device=engine.device)
        if state is not None:
            self.load(state)

    def begin(self) -> tuple[None, State]:
        return None, self.site.state()

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[tuple[Upload, Report], State]:
        return self.site.train(round_number, clients, download), self.site.state()

    def evaluate(self, round_number: int, download: Download) -> tuple[Report, State]:
        return self.site.evaluate(round_number, download), self.site.state()

    def write(self, path: str, token: str) -> tuple[str, None]:
        """Write the state to a file; returns its checksum, or "" if `token` is on another disk."""
        if not Path(token).exists():
            return "", None
        save_state(Path(path), self.site.state(), {})
        return stamp(Path(path)), None

    def load(self, state: State) -> tuple[None, State]:
        # Arrays in the object store are read-only, and torch needs writable ones.
        self.site.load({name: np.array(array) for name, array in state.items()})
        return self.begin()


@dataclass
class RemoteSite:
    """One site as the server sees it: its clients, and what is needed to restart it."""

    name: str
    rows: slice  # of the whole dataset
    clients: tuple[str, ...]
    work: Any  # reference to (dataset, method)
    state: Any = None  # reference to the state after the last call
    actor: Any = None


class RayTransport:
    """Several sites, each an actor that trains its share of the clients."""

    def __init__(
        self, dataset: Dataset, method: Method, engine: Engine, *, threads: int, keep: str
    ) -> None:
        shares = split_clients(len(dataset.ids), engine.sites)
        self.dataset, self.method, self.keep = dataset, method, keep
        self.threads = threads  # of this process
        self._ray, self._ours = connect(engine)
        self._whole: Site | None = None
        self._apart = False  # whether an actor does not see the run folder
        try:
            self._each = replace(engine, threads=threads_each(self._ray, engine))
            self.sites = [
                self._make_site(number, rows) for number, rows in enumerate(shares, start=1)
            ]
            self._begin()
        except BaseException:
            self.close()
            raise

    # -- the transport -------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[str, ...]:
        return self.dataset.ids

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]:
        chosen = set(clients)
        asked = [(site, tuple(c for c in site.clients if c in chosen)) for site in self.sites]
        asked = [(site, mine) for site, mine in asked if mine]
        calls = [(site, (round_number, mine, download.take(mine))) for site, mine in asked]
        answers = self._call("train", calls, f"round {round_number}")
        replies = [
            Reply(site.name, upload, report, mine)
            for (site, mine), (upload, report) in zip(asked, answers, strict=True)
        ]
        return replies, []

    def evaluate(self, round_number: int, download: Download) -> list[Report]:
        calls = [(site, (round_number, download.take(site.clients))) for site in self.sites]
        return self._call("evaluate", calls, f"round {round_number}")

    def changed_rows(self) -> Integers | None:
        return None

    def state(self) -> State:
        """The state of all clients, in the form of one site that holds them all."""
        try:
            states = self._ray.get([site.state for site in self.sites])
        except self._ray.exceptions.ObjectLostError as error:
            raise FuelsError(f"the state of a site {_gone(error)}") from None
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def write(self, folder: Path, number: int) -> dict[str, str] | None:
        """The files that the actors wrote with the state of a round, in order, and checksums."""
        if self._apart:
            return None
        token = folder / f"{secrets.token_hex(8)}.here"
        try:
            folder.mkdir(exist_ok=True)
            token.touch()
        except OSError as error:
            raise FuelsError(f"{folder}: cannot be written ({error.strerror})") from None
        files = [folder / f"{number}-{site.name}.safetensors" for site in self.sites]
        calls = [(s, (str(file), str(token))) for s, file in zip(self.sites, files, strict=True)]
        try:
            stamps = self._call("write", calls, f"saving round {number}")
        finally:
            token.unlink(missing_ok=True)
        if not all(stamps):
            self._apart = True
            return None
        return {file.name: stamp for file, stamp in zip(files, stamps, strict=True)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        calls = [
            (site, (self._ray.put({name: array[site.rows] for name, array in state.items()}),))
            for site in self.sites
        ]
        self._call("load", calls, "restoring a state")

    def whole(self) -> Site:
        if self._whole is None:
            self._whole = Site(self.dataset, self.method, keep=self.keep, threads=self.threads)
            self._whole.load(self.state())
        return self._whole

    def close(self) -> None:
        """End the actors, and Ray if it was started here; a cluster keeps running."""
        for site in getattr(self, "sites", ()):
            self._ray.kill(site.actor)
        if self._ours:
            self._ray.shutdown()

    # -- inside --------------------------------------------------------------------------------

    def _make_site(self, number: int, rows: slice) -> RemoteSite:
        share = self.dataset.take(range(rows.start, rows.stop))
        site = RemoteSite(str(number), rows, share.ids, self._ray.put((share, self.method)))
        self._start(site)
        return site

    def _start(self, site: RemoteSite) -> None:
        if site.actor is not None:
            self._ray.kill(site.actor)  # it may only be unreachable, and must not come back
        make = self._ray.remote(SiteActor).options(num_cpus=self._each.threads)
        site.actor = make.remote(site.work, self.keep, self._each, site.state)

    def _begin(self) -> None:
        """Wait until every actor runs, but not forever: the cluster may be full."""
        waiting = [(site, _send(site, "begin", ())) for site in self.sites]
        answers = [answer for _, (answer, _) in waiting]
        done, late = self._ray.wait(answers, num_returns=len(answers), timeout=PATIENCE)
        if late:
            raise FuelsError(
                f"Ray started {len(done)} of {len(answers)} sites within {PATIENCE:.0f} seconds;"
                f" each needs {self._each.threads} free cores: reduce --sites or --threads, or"
                " wait until the cluster is free"
            )
        for site, sent in waiting:
            self._answer(site, "begin", (), sent, "the start")

    def _call(
        self, verb: str, calls: Sequence[tuple[RemoteSite, tuple[Any, ...]]], stage: str
    ) -> list[Any]:
        """Call sites in parallel; returns their results in the same order."""
        self._whole = None
        sent = [_send(site, verb, arguments) for site, arguments in calls]
        return [
            self._answer(site, verb, arguments, pair, stage)
            for (site, arguments), pair in zip(calls, sent, strict=True)
        ]

    def _answer(
        self,
        site: RemoteSite,
        verb: str,
        arguments: tuple[Any, ...],
        sent: tuple[Any, Any],
        stage: str,
    ) -> Any:
        """The result of a call, from a new actor if the first one has died."""
        errors = self._ray.exceptions
        for attempt in range(1, STARTS + 1):
            try:
                answer = self._ray.get(sent[0])
            except errors.RayActorError as error:
                if attempt == STARTS:
                    raise FuelsError(
                        f"{stage}: site {site.name} died {STARTS} times ({_cause(error)}); fix"
                        " the cause and run again, with --resume if a round was finished"
                    ) from None
                warnings.warn(
                    f"{stage}: site {site.name} died; restarting it from its last state",
                    stacklevel=2,
                )
                self._start(site)
                sent = _send(site, verb, arguments)
            except errors.ObjectLostError as error:  # the site's whole machine died
                raise FuelsError(
                    f"{stage}: the result of site {site.name} {_gone(error)}"
                ) from None
            except errors.RayTaskError as error:
                if isinstance(error.cause, FuelsError):
                    raise FuelsError(f"site {site.name}: {error.cause}") from None
                raise
            else:
                if verb != "write":  # it leaves the state as it is
                    site.state = sent[1]
                return answer
        raise AssertionError("the last attempt returns or raises")


def _send(site: RemoteSite, verb: str, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """References to the result and to the state after it."""
    answer, state = getattr(site.actor, verb).options(num_returns=2).remote(*arguments)
    return answer, state


def _gone(error: Exception) -> str:
    return (
        f"was lost with the machine that held it ({_cause(error)}); continue from the last"
        " checkpoint with --resume"
    )


def _cause(error: Exception) -> str:
    """The last line of Ray's message, which says how the process ended."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].split(" Some common causes")[0].rstrip(".") if lines else "no reason given"


def split_clients(clients: int, sites: int) -> list[slice]:
    """Contiguous shares of about equal size, one for each site."""
    if not 1 <= sites <= clients:
        raise FuelsError(
            f"engine.sites must be from 1 to {clients}, the number of clients; it is {sites}"
        )
    bounds = [clients * site // sites for site in range(sites)]
    return [slice(a, b) for a, b in zip(bounds, [*bounds[1:], clients], strict=True)]


def threads_each(ray: Any, engine: Engine) -> int:
    """Threads per site: its share of --threads, or the most that the machines can give each."""
    if engine.threads or not engine.address:
        return share_of_threads(engine)
    machines = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    fitting = [
        threads
        for threads in range(1, int(max(machines, default=0)) + 1)
        if sum(cores // threads for cores in machines) >= engine.sites
    ]
    if not fitting:
        raise FuelsError(
            f"the Ray cluster at {engine.address} has {sum(machines):.0f} cores, too few for"
            f" {engine.sites} sites; reduce --sites"
        )
    return fitting[-1]


def share_of_threads(engine: Engine) -> int:
    return max(1, (engine.threads or available_cores()) // engine.sites)


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise FuelsError(f"--engine ray: {not_installed('Ray', 'ray')}") from None
    return ray


def look_for(address: str) -> None:
    """Refuse an address that does not answer: Ray would keep trying for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise FuelsError(f"--address must be the HOST:PORT of a Ray cluster, not {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuelsError(f"--address {address}: no Ray cluster answers ({reason})") from None


def connect(engine: Engine) -> tuple[Any, bool]:
    """Ray, connected, and whether this call started it, so that the transport must end it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if not engine.address:
        os.environ[CLUSTER] = "0"
    ray = import_ray()
    if ray.is_initialized():
        return ray, False
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if engine.address:
        look_for(engine.address)
        ray.init(address=engine.address, **common)
        return ray, True
    ray.init(
        address="local",
        num_cpus=share_of_threads(engine) * engine.sites,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        **common,
    )
    if any(node["NodeManagerAddress"] != "127.0.0.1" for node in ray.nodes()):
        ray.shutdown()
        raise FuelsError(
            "Ray was imported before fuels could restrict it to this machine; import it after"
            f" fuels, set {CLUSTER}=0 in the environment, or start Ray yourself"
        )
    return ray, True
