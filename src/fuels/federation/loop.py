"""The round loop: the only one, whatever carries the messages.

Each round: choose clients, send them what their method gives, let them train, check what comes
back, aggregate, judge, save. Display, log files and early stopping are watchers, not branches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fuels.config import Training, late_joiners
from fuels.errors import FuelsError
from fuels.federation.guard import refusals
from fuels.federation.refusals import Refusals
from fuels.federation.site import Report
from fuels.federation.transport import Chosen, Failure, Reply, TooFewError, Transport
from fuels.methods.base import Method
from fuels.methods.messages import Download, Upload, concatenate
from fuels.randomness import LATE, SELECTION, generator
from fuels.storage.checkpoint import prefixed, unprefixed

SITES = "transport"  # prefix of the sites' arrays in a state


@dataclass
class Round:
    """What happened in one round; `line` is what a log keeps of it."""

    number: int
    of: int
    clients: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    val_mse: float = float("nan")
    val_mae: float = float("nan")
    best_round: int = 0  # with the lowest validation error of the same clients; 0: none known
    numbers_up: float = 0.0  # per client that took part
    numbers_down: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)  # seconds
    touched: NDArray[np.int64] | None = None  # rows of the sites' state that changed; None: all
    last: bool = False  # training is over

    def line(self) -> dict[str, Any]:
        """The round without anything that differs between two equal runs."""
        values: dict[str, Any] = {"round": self.number, "clients": self.clients}
        values |= {f"loss_{name}": value for name, value in self.losses.items()}
        values |= {"val_mse": self.val_mse, "val_mae": self.val_mae}
        values["best_round"] = self.best_round
        values |= {"numbers_up": self.numbers_up, "numbers_down": self.numbers_down}
        values["failures"] = [f"{failure.site}: {failure.reason}" for failure in self.failures]
        return {k: (None if isinstance(v, float) and np.isnan(v) else v) for k, v in values.items()}

    def changed_rows(self, names: Iterable[str]) -> dict[str, NDArray[np.int64]]:
        """The rows that this round changed, for the arrays of the state of which only some did."""
        rows = self.touched
        return {} if rows is None else {name: rows for name in names if of_sites(name)}


class Watcher(Protocol):
    """Is told of every finished round, after its state was saved, if it was due."""

    def on_round(self, done: Round) -> None: ...


class Saver(Protocol):
    """Makes the state of a finished round durable."""

    def save(
        self, done: Round, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
    ) -> None: ...


class Loop:
    """A training in progress; `state` and `load` let it go on after an interruption."""

    def __init__(
        self,
        method: Method,
        transport: Transport,
        training: Training,
        seed: int,
        refused: Refusals | None = None,
        reachable: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self.method, self.transport = method, transport
        self.refused = refused or Refusals()  # a transport that refuses too counts in the same
        self.training, self.seed = method.complete(training), seed
        self.clients = transport.clients
        # Clients that a draw may give at present; where all sites are our own, all are there.
        self.reachable = reachable or (lambda: self.clients)
        self.server: Any = method.server(self.clients)
        self.round = 0
        self.position = {client: i for i, client in enumerate(self.clients)}
        self.val_mse = np.full(len(self.clients), np.nan)  # last known of each client
        self.val_mae = np.full(len(self.clients), np.nan)
        self.best_score, self.best_round = float("inf"), 0
        self.judged = 0  # clients the best score is the mean of
        self.unheard = set(self.clients)  # clients of which no upload was used yet
        self.best_download: Download | None = None  # of the best round, where all share one model
        self.totals = {"numbers_up": 0.0, "numbers_down": 0.0, "uploads": 0}

    # -- rounds --------------------------------------------------------------------------------

    def run(self, watchers: Sequence[Watcher] = (), saver: Saver | None = None) -> None:
        while not self.finished:
            done = self.step()
            if saver is not None:
                with _timed(done, "save"):
                    saver.save(done, *self.state())
            for watcher in watchers:
                watcher.on_round(done)

    @property
    def finished(self) -> bool:
        training = self.training
        stale = self.round - self.best_round
        stop_early = training.patience and self.best_round and stale >= training.patience
        return self.round >= training.rounds or bool(stop_early)

    def step(self) -> Round:
        """One round."""
        number = self.round + 1
        done = Round(number, self.training.rounds)
        download, replies = self._train(done)
        judging = max((reply.judging for reply in replies), default=0.0)
        if judging:
            done.stages["train"] -= judging
            done.stages["evaluate"] = judging
        # Whoever joined beside the round is known before anything is reported, judged or saved.
        self.admit(self.transport.clients)
        need_finite([reply.report for reply in replies if reply.report is not None], number)
        uploads, reports = [], []
        for reply in replies:
            accepted, refused = self._accept(reply, number)
            done.failures += refused
            if accepted is not None:
                uploads.append(accepted)
                if reply.report is not None:
                    reports.append(reply.report.of(accepted.clients))
        self._note(reports, done)
        if not uploads:
            reason = "; ".join(f"{f.site}: {f.reason}" for f in done.failures[:3])
            raise FuelsError(f"round {number}: no usable upload from any client ({reason})")
        upload = concatenate(uploads)
        self.unheard -= set(upload.clients)
        with _timed(done, "aggregate"):
            self.method.aggregate(self.server, upload)
        if self.method.evaluated == "after aggregation":
            with _timed(done, "evaluate"):
                judged = self.method.download(self.server, self.clients)
                answers = self.transport.evaluate(number, judged)
                self.admit(self.transport.clients)
                done.failures += [each for each in answers if isinstance(each, Failure)]
                self._note([each for each in answers if isinstance(each, Report)], done)
        done.touched = self.transport.touched()
        self._finish(done, upload, download)
        done.last = self.finished
        return done

    def _train(self, done: Round) -> tuple[Download, list[Reply]]:
        """Let the clients of a round train; where too few answer, draw and ask again."""
        for attempt in count(1):
            chosen = self.with_unheard(done.number, self.select(done.number, attempt))
            with _timed(done, "aggregate"):
                download = self.method.download(self.server, chosen)
            with _timed(done, "train"), suppress(TooFewError):
                replies, done.failures = self.transport.train(done.number, chosen, download)
                break
        return download, replies

    def admit(self, clients: Sequence[str]) -> None:
        """Take in clients that were not there before; what is known of the others stays."""
        new = tuple(client for client in clients if client not in self.position)
        if not new:
            return
        known = self.server.state()
        self.clients += new
        self.position = {client: i for i, client in enumerate(self.clients)}
        self.server = self.method.server(self.clients)
        self.server.load(known)
        self.unheard |= set(new)
        unjudged = np.full(len(new), np.nan)
        self.val_mse = np.concatenate([self.val_mse, unjudged])
        self.val_mae = np.concatenate([self.val_mae, unjudged])

    def select(self, number: int, attempt: int = 1) -> tuple[str, ...]:
        """The clients of a round: all that are there in round 1, then a share alpha of them.

        The share is drawn of those that can be reached, and another one in every further attempt. A
        late client trains in the round it joins, so that its prototype is known from then on.
        """
        present, late = self._there(number)
        if number == 1 or self.training.selection == 1:
            return tuple(self.clients[i] for i in present)
        reachable = set(self.reachable())
        pool = np.array([i for i in present if self.clients[i] in reachable] or present)
        size = max(1, round(self.training.selection * len(pool)))
        again = () if attempt == 1 else (attempt,)
        drawn = generator(self.seed, SELECTION, number, *again).choice(pool, size, replace=False)
        _, joining = late_joiners(self.training.late)
        joiners = set(late.tolist()) & set(pool.tolist()) if number == joining else set()
        return tuple(self.clients[i] for i in sorted(set(drawn.tolist()) | joiners))

    def with_unheard(self, number: int, chosen: tuple[str, ...]) -> Chosen:
        """The chosen clients and those never heard of: a joiner gives its prototype first.

        They came between two rounds, or their upload did not arrive or was refused.
        """
        present, _ = self._there(number)
        extra = {self.clients[i] for i in present} & self.unheard - set(chosen)
        return Chosen(sorted(extra | set(chosen), key=self.position.__getitem__), extra)

    def _there(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of the clients that are there in a round, and of those that come late."""
        share, joining = late_joiners(self.training.late)
        count = len(self.clients)
        # At least one client is there from the start.
        late = generator(self.seed, LATE).permutation(count)[: min(round(share * count), count - 1)]
        there = np.ones(count, dtype=np.bool_)
        if number < joining:
            there[late] = False
        return np.flatnonzero(there), late

    def _accept(self, reply: Reply, number: int) -> tuple[Upload | None, list[Failure]]:
        facts, upload, site = self.method.facts, reply.upload, reply.site
        most = reply.most_samples or facts.train_periods * facts.period
        declared = self.method.uploads(reply.round or number)
        counted = self.method.counts(reply.round or number)
        reasons, whole = refusals(
            upload, declared, set(reply.asked), counted=counted, most_samples=most
        )
        if whole:
            return None, [self.refused.add(site, number, "upload", whole)]
        refused = [self.refused.add(site, number, f"client {c}", w) for c, w in reasons.items()]
        rows = [i for i, client in enumerate(upload.clients) if client not in reasons]
        return (upload.take(rows) if rows else None), refused

    def _note(self, reports: Sequence[Report], done: Round) -> None:
        """Keep the error figures of a round, from as many sites as give them."""
        losses: dict[str, list[NDArray[np.float64]]] = {}
        for report in reports:
            rows = [self.position[client] for client in report.clients]
            if not np.isnan(report.val_mse).all():
                self.val_mse[rows], self.val_mae[rows] = report.val_mse, report.val_mae
            for name, values in report.losses.items():
                losses.setdefault(name, []).append(values)
        done.losses |= {name: float(np.mean(np.concatenate(v))) for name, v in losses.items()}

    def _finish(self, done: Round, upload: Upload, download: Download) -> None:
        self.round = done.number
        done.clients = len(upload.clients)
        done.numbers_up = upload.numbers
        done.numbers_down = download.numbers(upload.clients)
        self.totals["numbers_up"] += done.numbers_up * done.clients
        self.totals["numbers_down"] += done.numbers_down * done.clients
        self.totals["uploads"] += done.clients
        if np.isnan(self.val_mse).all():
            return
        judged = int((~np.isnan(self.val_mse)).sum())
        if judged != self.judged:  # a mean over other clients is not comparable with the best
            self.judged, self.best_score = judged, float("inf")
        done.val_mse = float(np.nanmean(self.val_mse))
        done.val_mae = float(np.nanmean(self.val_mae))
        if done.val_mse < self.best_score:
            self.best_score, self.best_round = done.val_mse, done.number
            if self.method.one_model and self.training.keep == "best":
                self.best_download = self.method.download(self.server, self.clients)
        done.best_round = self.best_round

    def final_download(self) -> Download:
        """What defines the kept models of methods that are judged by what the server gives."""
        if self.best_download is not None:
            return self.best_download
        return self.method.download(self.server, self.clients)

    # -- state ---------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        arrays = prefixed("server", self.server.state())
        arrays |= prefixed(SITES, self.transport.state())
        arrays |= {"loop/val_mse": self.val_mse, "loop/val_mae": self.val_mae}
        if self.best_download is not None:
            arrays |= prefixed("best", self.best_download.shared)
        facts = {
            "round": self.round,
            "clients": list(self.clients),
            "best_score": self.best_score,
            "best_round": self.best_round,
            "judged": self.judged,
            "unheard": sorted(self.unheard),
            "totals": self.totals,
            "refused": self.refused.counts,
        }
        return arrays, facts

    def load(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        if tuple(facts["clients"]) != self.clients:
            raise FuelsError("the checkpoint belongs to other clients than the data have now")
        # What the server keeps must not hang on the file that it was read from.
        self.server.load({n: np.array(a) for n, a in unprefixed("server", arrays).items()})
        self.transport.load(unprefixed(SITES, arrays))
        self.val_mse = np.array(arrays["loop/val_mse"])
        self.val_mae = np.array(arrays["loop/val_mae"])
        best = {name: np.array(array) for name, array in unprefixed("best", arrays).items()}
        self.best_download = Download(shared=best) if best else None
        self.round = int(facts["round"])
        self.best_score, self.best_round = float(facts["best_score"]), int(facts["best_round"])
        self.judged = int(facts["judged"])
        self.unheard = set(facts.get("unheard", []))
        self.totals = dict(facts["totals"])
        self.refused.load(facts.get("refused", {}))


def of_sites(name: str) -> bool:
    """Whether an array of the state is what the transport keeps of the sites."""
    return name.startswith(f"{SITES}/")


def need_finite(reports: Sequence[Report], number: int) -> None:
    """Diverged training is an error where the sites are our own; others' figures are refused."""
    for report in reports:
        for name, values in report.losses.items():
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise FuelsError(
                    f"round {number}: the {name} loss of client {report.clients[bad[0]]} "
                    "is not finite; training diverged, try a smaller learning rate"
                )


@contextmanager
def _timed(done: Round, stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    done.stages[stage] = done.stages.get(stage, 0.0) + time.perf_counter() - start
