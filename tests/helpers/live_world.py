"""A live series in this process: real sites and a real server, but no network and no waiting.

Values are given to a site step by step. A site can be away, lose its replies, or be restarted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.errors import FuelsError
from fuels.experts.ensemble import new_ensemble
from fuels.experts.history import History, history_of
from fuels.federation.codec import decode
from fuels.federation.flower.flower_app import write_run_config
from fuels.federation.flower.folders import RefusalError, Rules, ServerFolder, SiteFolder
from fuels.federation.flower.inbox import Time
from fuels.federation.flower.live import HOLD, Live
from fuels.federation.flower.live_messages import SUM, WAIT
from fuels.federation.flower.provisioning import federation_record, provision
from fuels.federation.flower.runs import Current
from fuels.federation.flower.sum_keys import certify
from fuels.federation.flower.worker import JobCache, Worker
from fuels.forecasting.memory import Memory
from fuels.runs.build import build, kept_parameters
from fuels.runs.settings import resolve
from fuels.sharing.received import FILE, ReceivedMean
from fuels.storage.config_file import write_toml
from fuels.storage.models import PersonalModels, save_models
from fuels.storage.run_folder import RunFolder

RUN = "fuels-1"
LIMIT = 2**24
TRAINED = 18  # days that the run knows
HOUR = 3600


def live_settings(days: int = TRAINED) -> Settings:
    best = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    changes = {
        "data": {"source": "synthetic:net"},
        "windows": {"split": f"{days - 3}/0/3"},
        "model": {"hidden": 4},
    }
    return merge(best, changes, "test")


class LiveWorld:
    """A founded federation whose sites have finished a run."""

    def __init__(
        self,
        root: Path,
        sites: Mapping[str, int],
        days: int = 1,
        deadline: float = 20.0,
        step: int = HOUR,
    ) -> None:
        """`sites`: site: its number of clients. `days` of later values are there to be given.

        `step`: seconds; with another one than an hour, a day is a period of 24 such steps.
        """
        provision(root, "metro", list(sites), "127.0.0.1", 9, rules=Rules(live_deadline=deadline))
        self._finish_run(root, sites, days, step)
        self.start()

    @classmethod
    def in_cluster(cls, root: Path, sites: Mapping[str, int]) -> LiveWorld:
        """The same in a federation of real processes, whose current run this is."""
        world = cls.__new__(cls)
        world._finish_run(root, sites, days=1)
        settings = live_settings()
        write_toml(world.run_folder / "config.toml", settings, Engine())
        write_run_config(world.run_folder / "flower.toml", RUN, resolve(settings))
        (world.run_folder / "summary.json").write_text("{}\n")
        Current(world.server).write(run=RUN, state="finished", reason="", live=False)
        return world

    def _finish_run(
        self, root: Path, sites: Mapping[str, int], days: int, step: int = HOUR
    ) -> None:
        clients = sum(sites.values())
        self.panel = replace(
            synthesise("net", clients=clients, days=TRAINED + days, seed=4),
            coordinates=None,
            step=np.timedelta64(step, "s"),
        )
        order = iter(self.panel.ids)
        self.ids = {site: [next(order) for _ in range(n)] for site, n in sites.items()}
        self.root = root
        certify(root, federation_record(root), sites, {})
        self.server = ServerFolder(root)
        self.run_folder = self.server.runs / RUN
        self.run_folder.mkdir(parents=True)
        known = replace(self.panel, values=self.panel.values[: TRAINED * 24])
        self._give_runs(known)
        self.given = dict.fromkeys(sites, known.length)  # steps that each site knows
        self.network = LiveNetwork(root, list(sites))

    def _give_runs(self, known: Panel) -> None:
        settings = live_settings()
        with build(settings, Engine(threads=1), known) as job:
            self.models = kept_parameters(job, job.loop.final_download())
            self.history, self.end = history_of(job.dataset), job.dataset.split.train
            self.settings = job.settings
        for site, ids in self.ids.items():
            text = (self.site_folder(site) / "site.toml").read_text()
            text = text.replace("live_mean = false", "live_mean = true")
            text = text.replace('source = ""', 'source = "synthetic:net"')
            (self.site_folder(site) / "site.toml").write_text(text)
            folder = RunFolder(self.site_folder(site) / "runs" / RUN)
            folder.path.mkdir(parents=True)
            models = self.models.take(ids)
            save_models(folder.models, models)
            rows = np.array([self.models.ids.index(client) for client in ids])
            self._save_ensemble(models, self.history.take(rows), folder)
            folder.remember(known.select(ids))
            write_toml(folder.config, settings, Engine())
            folder.summary.write_text("{}\n")

    def _save_ensemble(self, models: PersonalModels, history: History, folder: RunFolder) -> None:
        sharing = replace(self.settings.sharing, min_clients=1)
        ensemble = new_ensemble(models, history, self.end, title="FUELS", sharing=sharing)
        ensemble.save(folder.mixture)

    def copied(self, root: Path) -> LiveWorld:
        """The same federation in another folder, before anything has happened."""
        shutil.copytree(self.root, root)
        other = copy(self)
        other.root, other.server = root, ServerFolder(root)
        other.run_folder = other.server.runs / RUN
        other.given = dict(self.given)
        other.network = LiveNetwork(root, list(self.ids))
        other.start()
        return other

    def site_folder(self, site: str) -> Path:
        return self.root / "sites" / site

    # -- what happens --------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server, or start it again after a kill."""
        self.network.waiting.clear()
        time = Time(self.network.clock, self.network.sleep)
        self.live = Live(self.network, self.server, RUN, min_clients=10, time=time)

    def give(
        self,
        *sites: str,
        steps: int = 1,
        change: Callable[[np.ndarray], None] = lambda values: None,
    ) -> None:
        """The values of the next steps arrive at some sites (default: all), as from a forecast."""
        for site in sites or tuple(self.ids):
            first = self.given[site]
            self.given[site] += steps
            own = self.panel.select(self.ids[site])
            values = own.values[first : first + steps].copy()
            change(values)
            new = replace(own, values=values, start=own.times[first])
            folder = self.site_folder(site) / "runs" / RUN
            models = self.models.take(self.ids[site])
            memory = Memory.load(folder, models)
            if memory is None:
                known = replace(own, values=own.values[: TRAINED * 24])
                memory = Memory.begin(folder, models, known)
            memory.add(new)
            memory.store()
            self.network.arrived(site)

    def turn(self, seconds: float = 3.0) -> None:
        """Let some time pass."""
        end = self.network.time + seconds
        while self.network.time < end:
            self.live.look()
            self.network.sleep(0.1)

    def newest(self, site: str) -> Panel:
        """The newest values that a site knows, and the next ones, which it does not."""
        own, first = self.panel.select(self.ids[site]), self.given[site] - 1
        return replace(own, values=own.values[first : first + 2], start=own.times[first])

    def knows_sum(self, site: str, moment: np.datetime64) -> bool:
        """Whether a site has received the sum of a step."""
        file = self.site_folder(site) / "runs" / RUN / FILE
        return file.is_file() and self.received(site).decided(moment)

    def received(self, site: str) -> ReceivedMean:
        return ReceivedMean.load(self.site_folder(site) / "runs" / RUN / FILE)

    def expected(self, step: int, sites: Sequence[str] = ()) -> tuple[float, float]:
        """Total and count over some sites' clients at a step of the panel, without screening."""
        ids = [client for site in sites or tuple(self.ids) for client in self.ids[site]]
        models = self.models.take(ids)
        z = (self.panel.select(ids).values[step] - models.mean) / models.std
        return float(np.nansum(np.clip(z, -4, 4))), float((~np.isnan(z)).sum())


class LiveNetwork:
    """Carries messages to sites in this process; a held request costs no time."""

    def __init__(self, root: Path, sites: Sequence[str], settings: Settings | None = None) -> None:
        self.root, self.time, self.settings = root, 0.0, settings or Settings()
        self.there = set(sites)
        self.caches = {site: self._cache() for site in sites}
        self.waiting: dict[str, tuple[str, str, bytes, float]] = {}  # ticket: site, kind, request
        self.stirred: set[str] = set()  # sites with news since they were last looked at
        self.replies: list[tuple[str, str, bytes]] = []  # site, kind, reply: all that was sent
        self.lose: set[tuple[str, str]] = set()  # site and kind of a reply that is lost once
        self.count = 0

    def _cache(self) -> JobCache:
        cache = JobCache()
        ticks = iter(range(0, 2**62, 1000))
        cache.live.clock = lambda: float(next(ticks))  # a site never waits
        cache.live.sleep = lambda seconds: None
        return cache

    def clock(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def arrived(self, site: str) -> None:
        self.stirred.add(site)

    def kill(self, site: str) -> None:
        """The site's processes end, and with them the requests that they hold."""
        self.there.discard(site)
        self.waiting = {t: each for t, each in self.waiting.items() if each[0] != site}

    def restart(self, site: str) -> None:
        self.caches[site] = self._cache()
        self.there.add(site)

    def connected(self) -> set[str]:
        return self.there & self.allowed()

    def allowed(self) -> set[str]:
        return set(ServerFolder(self.root).config.sites)

    def send(self, contents: Mapping[str, bytes], kind: str, number: int, ttl: float) -> list[str]:
        tickets = []
        for site, content in contents.items():
            self.count += 1
            self.waiting[str(self.count)] = (site, kind, content, self.time)
            self.stirred.add(site)
            tickets.append(str(self.count))
        return tickets

    def collect(self, tickets: Sequence[str]) -> dict[str, bytes | FuelsError]:
        found: dict[str, bytes | FuelsError] = {}
        for ticket in [t for t in tickets if t in self.waiting]:
            site, kind, request, sent = self.waiting[ticket]
            over = self.time >= sent + HOLD
            if site not in self.there or not (over or site in self.stirred):
                continue
            reply = self._answer(site, request)
            if kind == WAIT and isinstance(reply, bytes) and not over:
                asked = decode(request, LIMIT).facts
                if asked["hold"] and not decode(reply, LIMIT).facts["values"]:
                    continue
            del self.waiting[ticket]
            if isinstance(reply, bytes):
                self.replies.append((site, kind, reply))
            if (site, kind) in self.lose:
                self.lose.discard((site, kind))
                continue
            found[ticket] = reply
        self.stirred.clear()
        return found

    def _answer(self, site: str, request: bytes) -> bytes | FuelsError:
        folder = SiteFolder(self.root / "sites" / site)
        worker = Worker(folder, self.settings, "", self.caches[site])
        try:
            return worker.answer(request, made=self.time)
        except FuelsError as error:
            return RefusalError(str(error))

    def sums(self, site: str) -> list[bytes]:
        """The masked contributions that a site has sent."""
        return [reply for who, kind, reply in self.replies if (who, kind) == (site, SUM)]


def authority_key(root: Path) -> ec.EllipticCurvePrivateKey:
    """The founder's key, with which rosters are signed."""
    key = load_pem_private_key((root / "authority" / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key
