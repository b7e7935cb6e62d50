"""The round loop, the same for every transport.

Each round: select clients, send the download, let them train, check the uploads, aggregate,
evaluate, save. The display and the log files are watchers, not branches of the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats, Integers
from fuels.config import Training, late_joiners
from fuels.errors import FuelsError
from fuels.federation.guard import refusals
from fuels.federation.refusals import Refusals
from fuels.federation.site import Report, check_finite
from fuels.federation.transport import (
    Chosen,
    Failure,
    Reply,
    TooFewError,
    Transport,
)
from fuels.methods.base import Method
from fuels.methods.messages import Download, Upload, concatenate
from fuels.randomness import LATE, SELECTION, generator
from fuels.storage.checkpoint import prefixed, unprefixed
from fuels.storage.journal import SITES, Writer


@dataclass
class Round:
    """One round's result; `line` is its entry in the log."""

    number: int
    of: int
    clients: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    val_mse: float = float("nan")
    val_mae: float = float("nan")
    best_round: int = 0  # with the lowest validation error of the same clients; 0: none known
    numbers_up: float = 0.0  # per participating client
    numbers_down: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    left_out: int = 0  # clients whose upload the method did not use, see Method.left_out
    stages: dict[str, float] = field(default_factory=dict)  # seconds
    site_rows: Integers | None = None  # changed rows of the sites' state; None: all
    writer: Writer | None = None  # sites whose state is not among the arrays to save
    last: bool = False  # the final round

    def line(self) -> dict[str, Any]:
        """The round without timings: equal runs write equal lines."""
        values: dict[str, Any] = {"round": self.number, "clients": self.clients}
        values |= {f"loss_{name}": value for name, value in self.losses.items()}
        values |= {"val_mse": self.val_mse, "val_mae": self.val_mae}
        values["best_round"] = self.best_round
        values |= {"numbers_up": self.numbers_up, "numbers_down": self.numbers_down}
        values["failures"] = [f"{failure.site}: {failure.reason}" for failure in self.failures]
        if self.left_out:
            values["left_out"] = self.left_out
        return {k: (None if isinstance(v, float) and np.isnan(v) else v) for k, v in values.items()}

    def changed_rows(self, names: Iterable[str]) -> dict[str, Integers]:
        """The changed rows of each array of the sites' state; other arrays changed as a whole."""
        rows = self.site_rows
        return {} if rows is None else {n: rows for n in names if n.startswith(f"{SITES}/")}


class Watcher(Protocol):
    """Receives every finished round, after its state was saved."""

    def on_round(self, done: Round) -> None: ...


class Saver(Protocol):
    """Writes the state of a finished round to disk.

    With an attribute `asks_writers` that is true, it lets a transport write its own state.
    """

    def save(
        self, done: Round, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
    ) -> None: ...


class Loop:
    """Training in progress; `state` and `load` let it resume after an interruption."""

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
        # Shared with a transport that also refuses messages.
        self.refused = refused or Refusals(method.facts.defence.refusals)
        self.training, self.seed = training, seed
        self.clients = transport.clients
        # Clients that can currently be selected; on one machine, all of them.
        self.reachable = reachable or (lambda: self.clients)
        self.server: Any = method.server(self.clients)
        self.round = 0
        self.position = {client: i for i, client in enumerate(self.clients)}
        self.val_mse = np.full(len(self.clients), np.nan)  # each client's latest
        self.val_mae = np.full(len(self.clients), np.nan)
        self.best_score, self.best_round = float("inf"), 0
        self.evaluated_clients = 0  # that the best score is the mean of
        self.without_upload = set(self.clients)  # clients that have not contributed yet
        self.best_download: Download | None = None  # of the best round, if all share one model
        self.totals = {"numbers_up": 0.0, "numbers_down": 0.0, "uploads": 0}

    # -- rounds --------------------------------------------------------------------------------

    def run(self, watchers: Sequence[Watcher] = (), saver: Saver | None = None) -> None:
        while not self.finished:
            done = self.step()
            if saver is not None:
                with _timed(done, "save"):
                    asks = getattr(saver, "asks_writers", False)
                    if asks and isinstance(self.transport, Writer):
                        done.writer = self.transport
                    saver.save(done, *self.state(sites=done.writer is None))
            for watcher in watchers:
                watcher.on_round(done)

    @property
    def left_out(self) -> dict[str, int]:
        """Client: rounds whose upload the method did not use."""
        return self.refused.left_out

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
        given = [reply.report for reply in replies if reply.report is not None]
        evaluation = max((report.evaluation_seconds for report in given), default=0.0)
        if evaluation:
            done.stages["train"] -= evaluation
            done.stages["evaluate"] = evaluation
        # Clients that joined during the round are added before anything is recorded or saved.
        self.admit(self.transport.clients)
        check_finite(given, number)
        uploads, reports = [], []
        for reply in replies:
            accepted, refused = self._accept(reply, number)
            done.failures += refused
            if accepted is not None:
                uploads.append(accepted)
                if reply.report is not None:
                    reports.append(reply.report.of(accepted.clients))
        self._record(reports, done)
        if not uploads:
            reason = "; ".join(f"{f.site}: {f.reason}" for f in done.failures[:3])
            raise FuelsError(f"round {number}: no usable upload from any client ({reason})")
        upload = concatenate(uploads)
        self.without_upload -= set(upload.clients)
        with _timed(done, "aggregate"):
            self.method.aggregate(self.server, upload)
            left_out = self.method.left_out(self.server)
        done.left_out = len(left_out)
        self.refused.leave_out(left_out, self.method.useless(self.server))
        if self.method.evaluate_after_aggregation:
            with _timed(done, "evaluate"):
                aggregated = self.method.download(self.server, self.clients)
                answers = self.transport.evaluate(number, aggregated)
                self.admit(self.transport.clients)
                done.failures += [each for each in answers if isinstance(each, Failure)]
                self._record([each for each in answers if isinstance(each, Report)], done)
        done.site_rows = self.transport.changed_rows()
        self._finish(done, upload, download)
        done.last = self.finished
        return done

    def _train(self, done: Round) -> tuple[Download, list[Reply]]:
        """Train the clients of a round; if too few reply, select again and repeat."""
        for attempt in count(1):
            chosen = self.add_new_clients(done.number, self.select(done.number, attempt))
            with _timed(done, "aggregate"):
                download = self.method.download(self.server, chosen)
            with _timed(done, "train"), suppress(TooFewError):
                replies, done.failures = self.transport.train(done.number, chosen, download)
                break
        return download, replies

    def admit(self, clients: Sequence[str]) -> None:
        """Add clients that joined; the state of the others does not change."""
        new = tuple(client for client in clients if client not in self.position)
        if not new:
            return
        known = self.server.state()
        self.clients += new
        self.position = {client: i for i, client in enumerate(self.clients)}
        self.server = self.method.server(self.clients)
        self.server.load(known)
        self.without_upload |= set(new)
        unknown = np.full(len(new), np.nan)
        self.val_mse = np.concatenate([self.val_mse, unknown])
        self.val_mae = np.concatenate([self.val_mae, unknown])

    def select(self, number: int, attempt: int = 1) -> tuple[str, ...]:
        """The clients of a round: all present ones in round 1, then a random share alpha.

        The share is drawn from the reachable clients, and drawn again for each further attempt. A
        late client trains in the round in which it joins, so that the server has its prototype.
        """
        present, late = self._present(number)
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

    def add_new_clients(self, number: int, chosen: tuple[str, ...]) -> Chosen:
        """The chosen clients, and those that have not contributed an upload yet.

        Such clients joined between two rounds, or their upload was lost or refused.
        """
        present, _ = self._present(number)
        extra = {self.clients[i] for i in present} & self.without_upload - set(chosen)
        return Chosen(sorted(extra | set(chosen), key=self.position.__getitem__), extra)

    def _present(self, number: int) -> tuple[Integers, Integers]:
        """Positions of the clients that are present in a round, and of the late ones."""
        share, joining = late_joiners(self.training.late)
        count = len(self.clients)
        # At least one client is present from the start.
        late = generator(self.seed, LATE).permutation(count)[: min(round(share * count), count - 1)]
        there = np.ones(count, dtype=np.bool_)
        if number < joining:
            there[late] = False
        excluded = self.refused.excluded & self.position.keys()
        there[[self.position[client] for client in excluded]] = False
        if not there.any():
            raise FuelsError(f"round {number}: every client is excluded from the run")
        return np.flatnonzero(there), late

    def _accept(self, reply: Reply, number: int) -> tuple[Upload | None, list[Failure]]:
        facts, upload, site = self.method.facts, reply.upload, reply.site
        reasons = reply.reasons
        if reasons is None:
            reasons, whole = refusals(
                upload,
                self.method.uploads(number),
                set(reply.asked),
                counted=self.method.counts(number),
                most_samples=facts.train_periods * facts.period,
            )
            if whole:
                return None, [self.refused.add(site, number, "upload", whole)]
        # Only clients that were asked: others may be another site's, to be excluded by a forgery.
        refused = [
            self.refused.add(site, number, f"client {c}", why, c if c in reply.asked else "")
            for c, why in reasons.items()
        ]
        rows = [i for i, client in enumerate(upload.clients) if client not in reasons]
        if facts.defence.votes == "site":
            upload = replace(upload, sites=(site,) * len(upload.clients))
        return (upload.take(rows) if rows else None), refused

    def _record(self, reports: Sequence[Report], done: Round) -> None:
        """Store the error figures of the sites that share them."""
        losses: dict[str, list[Floats]] = {}
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
        evaluated = int((~np.isnan(self.val_mse)).sum())
        if evaluated != self.evaluated_clients:  # means over different clients do not compare
            self.evaluated_clients, self.best_score = evaluated, float("inf")
        done.val_mse = float(np.nanmean(self.val_mse))
        done.val_mae = float(np.nanmean(self.val_mae))
        if done.val_mse < self.best_score:
            self.best_score, self.best_round = done.val_mse, done.number
            if self.method.one_model and self.training.keep == "best":
                self.best_download = self.method.download(self.server, self.clients)
        done.best_round = self.best_round

    def final_download(self) -> Download:
        """The download that defines the kept models of methods evaluated after aggregation."""
        if self.best_download is not None:
            return self.best_download
        return self.method.download(self.server, self.clients)

    # -- state ---------------------------------------------------------------------------------

    def state(self, *, sites: bool = True) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and facts; without those of the sites if they write them themselves."""
        arrays = prefixed("server", self.server.state())
        if sites:
            arrays |= prefixed(SITES, self.transport.state())
        arrays |= {"loop/val_mse": self.val_mse, "loop/val_mae": self.val_mae}
        if self.best_download is not None:
            arrays |= prefixed("best", self.best_download.shared)
        facts = {
            "round": self.round,
            "clients": list(self.clients),
            "best_score": self.best_score,
            "best_round": self.best_round,
            "judged": self.evaluated_clients,
            "unheard": sorted(self.without_upload),
            "totals": self.totals,
            **self.refused.state(),
        }
        return arrays, facts

    def load(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        if tuple(facts["clients"]) != self.clients:
            raise FuelsError("the checkpoint and the data have different clients")
        # Copied: the arrays may be views of the checkpoint file.
        self.server.load({n: np.array(a) for n, a in unprefixed("server", arrays).items()})
        self.transport.load(unprefixed(SITES, arrays))
        self.val_mse = np.array(arrays["loop/val_mse"])
        self.val_mae = np.array(arrays["loop/val_mae"])
        best = {name: np.array(array) for name, array in unprefixed("best", arrays).items()}
        self.best_download = Download(shared=best) if best else None
        self.round = int(facts["round"])
        self.best_score, self.best_round = float(facts["best_score"]), int(facts["best_round"])
        self.evaluated_clients = int(facts["judged"])
        self.without_upload = set(facts.get("unheard", []))
        self.totals = dict(facts["totals"])
        self.refused.load(facts)


@contextmanager
def _timed(done: Round, stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    done.stages[stage] = done.stages.get(stage, 0.0) + time.perf_counter() - start
