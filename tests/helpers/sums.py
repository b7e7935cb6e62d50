"""Small runs whose experts use sums over the clients of three sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from fuels.config import PRESETS, Settings, merge, with_preset
from fuels.federation.flower.private_sum_server import PrivateRunSums
from fuels.federation.flower.provisioning import federation_record, new_site
from fuels.federation.flower.records import audit
from fuels.federation.flower.sum_keys import certify
from fuels.federation.flower.sum_server import RunSums
from fuels.federation.flower.transport import FlowerTransport
from fuels.federation.refusals import Refusals
from fuels.runs.build import method_for
from fuels.runs.settings import ResolvedSettings, resolve
from helpers.flower_world import SITES, World, few_days, write_panel


def chosen(**changes: Any) -> ResolvedSettings:
    """Preset best, small, with sums over at least six clients."""
    best = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    small = {
        "windows": {"split": "8/2/2", "lags": "1-3,1p", "horizon": 2},
        "model": {"hidden": 4},
        "training": {"rounds": 1},
        "sharing": {"min_clients": 6},
    }
    return resolve(merge(merge(best, small, "test"), changes, "test"))


def private(**changes: Any) -> ResolvedSettings:
    """Preset private, small, with a declared scale and sums over at least six clients."""
    small = {
        "windows": {"split": "8/2/2", "lags": "1-3,1p"},
        "model": {"hidden": 4},
        "training": {"rounds": 1},
        "sharing": {"min_clients": 6},
        "privacy": {"scale": "10,3"},
    }
    settings = with_preset(Settings(), "private", "test")
    return resolve(merge(merge(settings, small, "test"), changes, "test"))


def forecasts(folder: Path) -> pl.DataFrame:
    """The forecasts in a run folder, in one order."""
    return pl.read_parquet(folder / "forecasts.parquet").sort("client", "time")


def make_world(root: Path, settings: ResolvedSettings, clients: int = 2, **rules: Any) -> World:
    """Three sites that consent to sums, with a roster."""
    world = World(root, settings, **rules)
    for site in SITES:
        change(world, site, "sums = false", "sums = true")
        change(world, site, "live_mean = false", "live_mean = true")
        change(world, site, "min_clients = 10", "min_clients = 6")
    certify(root, federation_record(root), dict.fromkeys(SITES, clients), {})
    return world


def change(world: World, site: str, old: str, new: str) -> None:
    file = world.root / "sites" / site / "site.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


NEWCOMER = {"west": ["g", "h"]}


def join(world: World, method: str = "fuels") -> None:
    """A fourth site joins: a folder, its own data, its owner's consent, and a new roster."""
    ((site, ids),) = NEWCOMER.items()
    new_site(world.root, site, [method])
    file = world.root / "sites" / site / "site.toml"
    text = file.read_text().replace('source = ""', 'source = "own.csv"')
    file.write_text(few_days(text.replace("threads = 0", "threads = 1")))
    change(world, site, "\nsums = false", "\nsums = true")
    change(world, site, "live_mean = false", "live_mean = true")
    change(world, site, "min_clients = 10", "min_clients = 6")
    write_panel(file.with_name("own.csv"), ids)
    certify(world.root, federation_record(world.root), {site: len(ids)}, {})


def exchanged(world: World, name: str = "run") -> Any:
    """What a server does before the first round, and nothing else."""
    kind = PrivateRunSums if world.settings.privacy.epsilon else RunSums
    rules, clock = world.server.config.rules, world.time
    transport = FlowerTransport(world.network, name, rules, 1, clock, Refusals(0))
    transport.join(set(world.network.there))
    transport.use(method_for(world.settings, transport.members.train_periods))
    (world.server.runs / name).mkdir(parents=True, exist_ok=True)
    sums = kind(world.server, name, world.settings, transport, audit(world.server))
    sums.exchange()
    return sums
