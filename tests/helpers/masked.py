"""Federations of three sites that mask their uploads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuels.config import merge
from fuels.federation.flower.provisioning import federation_record
from fuels.federation.flower.sum_keys import certify
from fuels.runs.settings import ResolvedSettings
from helpers.flower_world import SITES, World, settings


def chosen(method: str = "fedavg", rounds: int = 2, **changes: Any) -> ResolvedSettings:
    extra = {"privacy": {"masked": True}, "sharing": {"min_clients": 6}, **changes}
    found = merge(settings(method, rounds), extra, "test")
    assert isinstance(found, ResolvedSettings)
    return found


def make_world(root: Path, run_settings: ResolvedSettings, **rules: Any) -> World:
    world = World(root, run_settings, **{"quorum": 1.0, **rules})
    for site in SITES:
        change(world, site, "min_clients = 10", "min_clients = 6")
    certify(root, federation_record(root), dict.fromkeys(SITES, 2), {})
    return world


def change(world: World, site: str, old: str, new: str) -> None:
    file = world.root / "sites" / site / "site.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
