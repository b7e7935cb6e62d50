"""The live series of a run of `flower_world`, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fuels.config import Settings
from fuels.data.panel import Panel
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.inbox import Time
from fuels.federation.flower.live import Live
from fuels.forecasting.saved_run import SavedRun
from helpers.flower_world import SITES
from helpers.live_world import LiveNetwork


class Series:
    """The live series of a finished run in this process."""

    def __init__(
        self,
        root: Path,
        run: str = "run",
        settings: Settings | None = None,
        sites: Mapping[str, Sequence[str]] = SITES,
    ) -> None:
        self.root, self.name, self.sites = root, run, sites
        self.given = dict.fromkeys(sites, 0)  # hours
        self.network = LiveNetwork(root, list(sites), settings)
        time = Time(self.network.clock, self.network.sleep)
        self.live = Live(self.network, ServerFolder(root), run, min_clients=6, time=time)

    def run(self, site: str) -> Path:
        return self.root / "sites" / site / "runs" / self.name

    def later(self, site: str, hours: int, after: int = 0) -> Panel:
        """Values of a site after those of the run, beginning so many hours later."""
        known = SavedRun.load(self.run(site)).training_data().select(self.sites[site])
        rows = known.values[-24:][after : after + hours] + 0.5
        start = known.start + (known.length + after) * known.step
        return replace(known, values=rows, start=start)

    def give(self, hours: int, *sites: str) -> None:
        for site in sites or self.sites:
            new = self.later(site, hours, self.given[site])
            SavedRun.load(self.run(site)).forecast(new=new)
            self.given[site] += hours
            self.network.arrived(site)

    def turn(self, seconds: float = 20.0) -> None:
        end = self.network.time + seconds
        while self.network.time < end:
            self.live.look()
            self.network.sleep(0.1)
