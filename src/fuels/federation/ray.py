"""Sites as Ray actors, on this machine or on a cluster; the server stays in this process.

Each actor holds a contiguous share of the clients and trains it with the same `Site` as the local
engine. An actor may die at any moment, so with every answer it leaves its new state in the object
store of its own machine: as the second return value of the call it belongs to this process and
outlives the actor, and it is not moved here before somebody asks for it (a checkpoint, the final
models). Where an actor died, a new one starts from the last such state and the call is repeated;
since nothing random depends on who computes it, the result is the same.

This is the only module that knows Ray, and it imports it when a transport is made.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.config import Engine
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.federation.site import Report, Site
from fuels.federation.transport import Failure, Reply
from fuels.methods.base import Method
from fuels.methods.messages import Download, Upload
from fuels.training.runtime import available_cores, set_up
from fuels.version import not_installed

State = dict[str, NDArray[Any]]

STARTS = 3  # an actor that dies this many times in one call is not started again
PATIENCE = 120.0  # seconds until all actors must have found a place and started

# Read by Ray when it is imported: no report to its makers, and not its own account of a dead actor,
# which would go to stdout, into the middle of a --json summary.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# With 0 Ray keeps to the loopback address on every system; otherwise it takes 127.0.0.1 for a wish
# to be told the machine's own address, and listens to the network.
CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class SiteActor:
    """What runs in an actor: a site. Every answer comes with the state after it."""

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
    ) -> tuple[tuple[Upload, Report, float], State]:
        upload, report = self.site.train(round_number, clients, download)
        return (upload, report, self.site.judging), self.site.state()

    def evaluate(self, round_number: int, download: Download) -> tuple[Report, State]:
        return self.site.evaluate(round_number, download), self.site.state()

    def load(self, state: State) -> tuple[None, State]:
        # What lies in the object store is read-only, and torch wants arrays it could write to.
        self.site.load({name: np.array(array) for name, array in state.items()})
        return self.begin()


@dataclass
class Seat:
    """One site as the server sees it: its clients, and all it takes to start it anew."""

    name: str
    rows: slice  # of the whole dataset
    clients: tuple[str, ...]
    work: Any  # reference to (dataset, method)
    state: Any = None  # reference to the state after the last answer
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
        try:
            self._each = replace(engine, threads=threads_each(self._ray, engine))
            self.seats = [self._seat(number, rows) for number, rows in enumerate(shares, start=1)]
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
        asked = [(seat, tuple(c for c in seat.clients if c in chosen)) for seat in self.seats]
        asked = [(seat, mine) for seat, mine in asked if mine]
        calls = [(seat, (round_number, mine, download.take(mine))) for seat, mine in asked]
        answers = self._call("train", calls, f"round {round_number}")
        replies = [
            Reply(seat.name, upload, report, mine, judging=judging)
            for (seat, mine), (upload, report, judging) in zip(asked, answers, strict=True)
        ]
        return replies, []

    def evaluate(self, round_number: int, download: Download) -> list[Report]:
        calls = [(seat, (round_number, download.take(seat.clients))) for seat in self.seats]
        return self._call("evaluate", calls, f"round {round_number}")

    def touched(self) -> NDArray[np.int64] | None:
        return None

    def state(self) -> State:
        """The state of all clients, as one site that holds them all would give it."""
        try:
            states = self._ray.get([seat.state for seat in self.seats])
        except self._ray.exceptions.ObjectLostError as error:
            raise FuelsError(f"the state of a site {_gone(error)}") from None
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        calls = [
            (seat, (self._ray.put({name: array[seat.rows] for name, array in state.items()}),))
            for seat in self.seats
        ]
        self._call("load", calls, "restoring a state")

    def whole(self) -> Site:
        if self._whole is None:
            self._whole = Site(self.dataset, self.method, keep=self.keep, threads=self.threads)
            self._whole.load(self.state())
        return self._whole

    def close(self) -> None:
        """End the actors, and Ray if it was started here; a cluster goes on without us."""
        for seat in getattr(self, "seats", ()):
            self._ray.kill(seat.actor)
        if self._ours:
            self._ray.shutdown()

    # -- inside --------------------------------------------------------------------------------

    def _seat(self, number: int, rows: slice) -> Seat:
        share = self.dataset.take(range(rows.start, rows.stop))
        seat = Seat(str(number), rows, share.ids, self._ray.put((share, self.method)))
        self._start(seat)
        return seat

    def _start(self, seat: Seat) -> None:
        if seat.actor is not None:
            self._ray.kill(seat.actor)  # it may be out of reach only, and must not come back
        make = self._ray.remote(SiteActor).options(num_cpus=self._each.threads)
        seat.actor = make.remote(seat.work, self.keep, self._each, seat.state)

    def _begin(self) -> None:
        """Wait until every actor runs; a full cluster would let us wait for ever."""
        waiting = [(seat, _send(seat, "begin", ())) for seat in self.seats]
        answers = [answer for _, (answer, _) in waiting]
        done, late = self._ray.wait(answers, num_returns=len(answers), timeout=PATIENCE)
        if late:
            raise FuelsError(
                f"Ray started {len(done)} of {len(answers)} sites within {PATIENCE:.0f} seconds:"
                f" {self._each.threads} free cores are needed for each; give fewer --sites or"
                " --threads, or wait until the cluster is free"
            )
        for seat, sent in waiting:
            self._answer(seat, "begin", (), sent, "the start")

    def _call(
        self, verb: str, calls: Sequence[tuple[Seat, tuple[Any, ...]]], stage: str
    ) -> list[Any]:
        """Ask sites at the same time; their answers in the same order."""
        self._whole = None
        sent = [_send(seat, verb, arguments) for seat, arguments in calls]
        return [
            self._answer(seat, verb, arguments, pair, stage)
            for (seat, arguments), pair in zip(calls, sent, strict=True)
        ]

    def _answer(
        self, seat: Seat, verb: str, arguments: tuple[Any, ...], sent: tuple[Any, Any], stage: str
    ) -> Any:
        """A site's answer, from a new actor if the one that was asked has died."""
        errors = self._ray.exceptions
        for attempt in range(1, STARTS + 1):
            try:
                answer = self._ray.get(sent[0])
            except errors.RayActorError as error:
                if attempt == STARTS:
                    raise FuelsError(
                        f"{stage}: site {seat.name} died {STARTS} times ({_cause(error)}); mend"
                        " this and run again, with --resume if a round was finished"
                    ) from None
                warnings.warn(
                    f"{stage}: site {seat.name} died and is started again from its last state",
                    stacklevel=2,
                )
                self._start(seat)
                sent = _send(seat, verb, arguments)
            except errors.ObjectLostError as error:  # a site's machine died with what it kept
                raise FuelsError(
                    f"{stage}: the answer of site {seat.name} {_gone(error)}"
                ) from None
            except errors.RayTaskError as error:
                if isinstance(error.cause, FuelsError):
                    raise FuelsError(f"site {seat.name}: {error.cause}") from None
                raise
            else:
                seat.state = sent[1]
                return answer
        raise AssertionError("the last attempt answers or raises")


def _send(seat: Seat, verb: str, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """References to the answer and to the state after it."""
    answer, state = getattr(seat.actor, verb).options(num_returns=2).remote(*arguments)
    return answer, state


def _gone(error: Exception) -> str:
    return (
        f"is lost with the machine that held it ({_cause(error)}); continue with --resume, which"
        " goes back to the last checkpoint"
    )


def _cause(error: Exception) -> str:
    """The last line of Ray's account, which says how the process ended."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].split(" Some common causes")[0].rstrip(".") if lines else "no reason given"


def split_clients(clients: int, sites: int) -> list[slice]:
    """Contiguous shares of about equal size, one for each site."""
    if not 1 <= sites <= clients:
        raise FuelsError(f"engine.sites must be 1 to {clients}, one for each client; it is {sites}")
    bounds = [clients * site // sites for site in range(sites)]
    return [slice(a, b) for a, b in zip(bounds, [*bounds[1:], clients], strict=True)]


def threads_each(ray: Any, engine: Engine) -> int:
    """Threads of one site: its share of --threads, or as many as the machines have for each."""
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
            f" {engine.sites} sites; give fewer --sites"
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
    """Refuse an address where nobody answers: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise FuelsError(f"--address takes HOST:PORT of a Ray cluster, not {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuelsError(f"--address {address}: no Ray cluster answers there ({reason})") from None


def connect(engine: Engine) -> tuple[Any, bool]:
    """Ray, connected, and whether it was started here: then it is ours to end."""
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
            "Ray was imported before it could be told to stay on this machine; import it after"
            f" fuels, set {CLUSTER}=0 in the environment, or start Ray yourself"
        )
    return ray, True
