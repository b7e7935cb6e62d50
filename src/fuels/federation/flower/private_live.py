"""A site's steps of a live series under a guarantee: noise from its ledger, before masks.

The live mean of each step is one more release of the run: the budget's share for the live mean,
once for each hour. On the wire, a noised sum is a number like any other, so the server is the same
with noise and without: the first number is the sum, in steps of the release's grid, and the second
the number of clients that contribute, whether or not they have a value.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.experts.private_releases import (
    LEAST_PERIODS,
    cells_of,
    declared_for,
    live_release,
    scale_from,
    sums_of,
)
from fuels.experts.private_run_sums import FederatedExperts
from fuels.federation.flower.folders import SiteConfig, SiteFolder
from fuels.federation.flower.private_sum_site import ledger_for, refuse_more_than_the_run
from fuels.forecasting.contributions import LiveClients
from fuels.privacy.ledger import Release
from fuels.privacy.sensitivity import Unit
from fuels.sharing import private_statistics as private
from fuels.sharing.fixed_point import SCALE, Words


class NoisedSteps:
    """What a site adds to the steps of a live series, and what the sums say."""

    def __init__(
        self, folder: SiteFolder, config: SiteConfig, run: str, clients: LiveClients
    ) -> None:
        ensemble, settings = clients.saved.ensemble, clients.saved.settings
        experts = None if ensemble is None else ensemble.sharing
        if not isinstance(experts, FederatedExperts) or ensemble is None:
            raise FuelsError(f"run {run} has no noised sums, so it has no live mean either")
        self.clients, self.ensemble, self.experts = clients, ensemble, experts
        self.privacy = settings.privacy
        if self.privacy.unit == Unit.CLIENT:
            raise FuelsError(
                "each step of a live series would spend the budget of a client (privacy.unit ="
                " client) again"
            )
        ledger = ledger_for(folder, config, self.privacy)
        seconds = clients.panel.step_seconds
        sharing, horizon = settings.sharing, settings.windows.horizon
        self.sums = sums_of(self.privacy, sharing, horizon, seconds, ledger, run)
        least = LEAST_PERIODS * settings.windows.period
        scale = declared_for(self.privacy, clients.ids, folder.path)
        scale = scale or scale_from(self.sums, clients.ids, least)
        if scale is None:
            raise FuelsError(f"this site has added nothing to the sums of run {run}")
        self.scale = scale

    @property
    def members(self) -> int:
        return int(self.scale.member.sum())

    def words(self, local: np.datetime64, sites: tuple[str, ...]) -> Words:
        """The noised sum of a step in local standard time, and the number of clients."""
        release = self._release(local)
        refuse_more_than_the_run(self.sums, release, self.privacy.epsilon, self.privacy.delta)
        history = self.ensemble.history(self.clients.panel)
        at = int((local - history.start) // history.step)
        if not 0 <= at < history.length:
            raise FuelsError("this site has no values for this step")
        mean, std = self.experts.mean[:, None], self.experts.std[:, None]
        scaled = self.scale.apply(history.observed[:, at : at + 1] * std + mean)
        cell = cells_of(history)[0][at : at + 1]
        entry = self.sums.ledger.release(
            release,
            private.deviations(scaled, self.experts.day, cell),
            {"sites": list(sites)},
            sites=len(sites),
            colluding=self.privacy.colluding,
        )
        if entry.about["sites"] != list(sites):
            raise FuelsError("the noise of this step was drawn for other sites")
        count = np.array([self.members * int(SCALE)], dtype=np.int64)
        return np.concatenate([entry.message, count]).view(np.uint64)

    def decoded(self, totals: Floats) -> Floats:
        """Sums of deviations from the mean day, from totals as the server has them."""
        grid = self._release(np.datetime64(0, "s")).grid
        return np.asarray(totals * SCALE * grid)

    def _release(self, local: np.datetime64) -> Release:
        begin = int(local.astype("datetime64[s]").astype(np.int64))
        assert self.experts.steps is not None
        span = begin, begin + self.sums.protected.step_seconds
        return live_release(self.sums, span, self.experts.steps.end)
