"""A site's side of a live series: waits for new values, contributes them, stores the sums.

Values reach a run with `fuels forecast`; see forecasting/contributions.py. What the clients
contribute is stored with the run before the masked numbers leave, because a client later subtracts
exactly that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, encode
from fuels.federation.flower.folders import RefusalError, SiteConfig, SiteFolder, log
from fuels.federation.flower.live_messages import NAME, SUM, WAIT, Sum, Wait, series
from fuels.federation.flower.live_record import as_text
from fuels.federation.flower.private_live import NoisedSteps
from fuels.federation.flower.records import SiteRecords
from fuels.federation.flower.sum_site import certified
from fuels.forecasting.contributions import LiveClients
from fuels.sharing.answers import Span
from fuels.sharing.fixed_point import Words, to_words
from fuels.sharing.live_mean import contribution, identity
from fuels.sharing.masks import SumId
from fuels.sharing.received import FILE, ReceivedMean

LOOK = 0.1  # seconds between two looks for new values
KEPT = 1.5  # times as many steps of the live mean are kept as of the values
ZERO = np.datetime64(0, "s")


@dataclass
class LiveRuns:
    """The clients of the run whose live series was served last: they stay loaded."""

    clients: LiveClients | None = None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def of(self, run: Path) -> LiveClients:
        if self.clients is None or self.clients.folder != run:
            try:
                self.clients = LiveClients(run)
            except FuelsError as error:
                log.error("%s", error)
                raise RefusalError(f"it has no finished run {run.name}") from None
        return self.clients


def answer_live(
    folder: SiteFolder,
    config: SiteConfig,
    records: SiteRecords,
    runs: LiveRuns,
    request: Envelope,
    size: int,
    expires: float,
) -> bytes:
    """The reply to a request of `size` bytes; a RefusalError says why there is none."""
    if time.time() > expires:
        raise RefusalError("the request came too late")
    try:
        reply = LiveSite(folder, config, request.run, runs).answer(request, expires)
        content = encode(reply)
        if request.kind == SUM:
            records.contributed(request.run, as_text(request.facts["step"]), content)
    except RefusalError as error:
        if request.kind != SUM:
            raise
        # The server need not wait for this sum.
        log.error("%s", error)
        records.refused(str(error))
        content = encode(replace(request, facts={"refused": str(error)}, arrays={}))
    records.counted(request.kind, len(content), size)
    return content


class LiveSite:
    """Answers the requests of one live series."""

    def __init__(self, folder: SiteFolder, config: SiteConfig, run: str, runs: LiveRuns) -> None:
        if not config.consent.live_mean:
            raise RefusalError(
                f"site {config.name} does not consent to a live mean (consent.live_mean in its"
                " site.toml)"
            )
        self.folder, self.config, self.run, self.runs = folder, config, run, runs
        self.clients = runs.of(folder.runs / run)
        if config.consent.epsilon and not self.clients.guaranteed:
            raise RefusalError(
                f"the sums of this live series carry no noise, and site {config.name} demands it"
                f" (consent.epsilon = {config.consent.epsilon:g} in its site.toml)"
            )
        if not self.clients.shares_live_mean:
            raise RefusalError(f"run {run} was trained without sharing.live_mean")
        panel = self.clients.panel
        self.offset, self.step = panel.standard_offset, panel.step
        self.file = folder.runs / run / FILE
        self.received = self._load()
        try:
            self.noised = self._noised() if self.clients.guaranteed else None
        except FuelsError as error:  # of the ledger, which quotes no data
            raise RefusalError(str(error)) from None

    def _noised(self) -> NoisedSteps:
        return NoisedSteps(self.folder, self.config, self.run, self.clients)

    def answer(self, envelope: Envelope, expires: float) -> Envelope:
        try:
            if envelope.kind == WAIT:
                return self._wait(envelope, Wait.read(envelope), expires)
            return self._sum(envelope, Sum.read(envelope.facts))
        except RefusalError:
            raise
        except FuelsError as error:  # of the sums, which quotes no data, or of the message
            raise RefusalError(str(error)) from None

    # -- sums and values -----------------------------------------------------------------------

    def _wait(self, envelope: Envelope, asked: Wait, expires: float) -> Envelope:
        """Store the sums, then wait until there are values of the step."""
        seconds = self.clients.panel.step_seconds
        if asked.seconds and asked.seconds != seconds:
            raise RefusalError(
                f"the series has steps of {asked.seconds} s, and this site's data of {seconds} s"
            )
        if len(asked.sums):
            first, (total, count) = self._local(asked.first), asked.sums.T
            if self.noised is not None:
                total = self.noised.decoded(total)
            self._store(self.received.with_sums(first, total, count))
        if asked.step is not None:
            self._check_time(asked.step)
        end = min(self.runs.clock() + asked.hold, expires - 1.0)
        while True:
            values = 0 if asked.step is None else self._values(asked.step)
            if values or self.runs.clock() >= end:
                break
            self.runs.sleep(LOOK)
        newest = self.clients.newest()
        if newest is None:
            raise RefusalError("its clients have no values")
        facts = {
            "step": asked.step,
            "values": values,
            "clients": len(self.clients.ids),
            "newest": _seconds(newest),
            "after": self._after(),
            "seconds": seconds,
        }
        return replace(envelope, facts=facts, arrays={})

    def _values(self, step: int) -> int:
        values = int((~np.isnan(self.clients.at(_moment(step)))).sum())
        # How many values are missing is protected, too.
        return values if self.noised is None else self.noised.members * bool(values)

    def _check_time(self, step: int) -> None:
        """Refuse steps at other times than those of this site's data, such as half past."""
        panel = self.clients.panel
        if (_moment(step) - panel.start) % panel.step != np.timedelta64(0, "s"):
            raise RefusalError("this site's data have steps at other times than the series")

    def _after(self) -> int | None:
        """The time after the newest step that is decided."""
        decided = np.flatnonzero(~np.isnan(self.received.count))
        if not len(decided):
            return None
        after = self.received.start + (int(decided[-1]) + 1) * self.step
        return _seconds(after - self.offset)

    # -- contributions -------------------------------------------------------------------------

    def _sum(self, envelope: Envelope, asked: Sum) -> Envelope:
        """The masked contribution to the sum of a step."""
        local, moment = self._local(asked.step), _moment(asked.step)
        if self.received.decided(local):
            raise RefusalError("the sum of this step is known already")
        sums, serial = certified(
            self.folder,
            self.config,
            asked.roster,
            len(self.clients.ids),
            self.clients.saved.settings.sharing.min_clients,
        )
        parties = self.config.federation, serial, series(self.run)
        which = SumId(*parties, NAME, asked.step, asked.sites, (2,))

        def words() -> Words:
            values = self.clients.at(moment)
            if np.isnan(values).all():
                raise RefusalError("its clients have no values at this step")
            if self.noised is not None:
                return self.noised.words(local, asked.sites)
            self._store(self.received.contributed(local, values))
            return to_words(list(contribution(values)), len(asked.sites), str(which))

        found = sums.answer(which, asked.roster, words, also=self._spans(local))
        return replace(envelope, facts={}, arrays={"words": found.view(np.int64)})

    def _spans(self, local: np.datetime64) -> list[Span]:
        """This step as part of the live mean, which the sums before training contain as well."""
        if self.noised is not None:  # what each release reveals is bounded by its noise
            return []
        models, begin = self.clients.saved.models, _seconds(local)
        which = identity(models.ids, models.mean, models.std)
        return [Span(which, begin, begin + self.clients.panel.step_seconds)]

    # -- on disk -------------------------------------------------------------------------------

    def _load(self) -> ReceivedMean:
        panel = self.clients.panel
        begin = ReceivedMean.begin(self.clients.ids, panel.start + self.offset, self.step)
        if not self.file.is_file():
            return begin
        try:
            found = ReceivedMean.load(self.file)
        except FuelsError as error:
            log.error("%s; it is written again from the sums that the server has", error)
            self.file.replace(self.file.with_name(f"{FILE}.damaged"))
            return begin
        return found

    def _store(self, received: ReceivedMean) -> None:
        received = received.newest(round(KEPT * self.clients.panel.length))
        try:
            received.save(self.file)
        except OSError as error:
            log.error("%s: cannot be written (%s)", self.file, error.strerror)
            raise RefusalError("it cannot store the live mean; see its log") from None
        self.received = received

    def _local(self, step: int) -> np.datetime64:
        return _moment(step) + self.offset


def _moment(seconds: int) -> np.datetime64:
    return ZERO + np.timedelta64(seconds, "s")


def _seconds(moment: np.datetime64) -> int:
    return int((moment - ZERO) / np.timedelta64(1, "s"))
