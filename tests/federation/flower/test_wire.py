"""Bytes on the wire at the paper's size: 100 clients in 4 sites, hidden 128."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuels.config import merge
from fuels.federation.flower.folders import Rules
from helpers.cluster import Cluster, cluster
from helpers.flower_world import settings

pytest.importorskip("flwr")
pytestmark = pytest.mark.operations

CLIENTS, PROTOTYPE, MODEL = 100, 4 * 6144, 4 * 100865
LONG = 900.0


def traffic(running: Cluster, method: str, rounds: int) -> tuple[int, int]:
    """All bytes of a run, up and down: joining, rounds, the end, TLS and polling in between."""
    before = [(relay.up, relay.down) for relay in running.relays.values()]
    chosen = merge(settings(method, rounds=rounds), {"model": {"hidden": 128}}, "test")
    run = running.submit(chosen)
    history = running.finish(run, LONG)
    assert [line["clients"] for line in history] == [CLIENTS] * rounds
    after = [(relay.up, relay.down) for relay in running.relays.values()]
    up, down = (sum(b[i] - a[i] for a, b in zip(before, after, strict=True)) for i in (0, 1))
    return up, down


def test_bytes_on_the_wire(tmp_path: Path) -> None:
    """Everything a run sends is counted and shared out among its clients and rounds."""
    ids = [f"c{i:03d}" for i in range(CLIENTS)]
    sites = {f"site-{i}": ids[i::4] for i in range(4)}
    rules = replace(Rules(), quorum=1.0, evaluate_every=10)
    with cluster(tmp_path / "fed", sites, rules, ["fuels", "fedavg"], relays=True) as running:
        up, down = traffic(running, "fuels", rounds=4)
        up, down = up // (4 * CLIENTS), down // (3 * CLIENTS)  # round 1 sends nothing down
        print(f"FUELS: {up} bytes up, {down} bytes down per client and round")
        assert PROTOTYPE <= up <= 1.1 * PROTOTYPE
        assert 2 * PROTOTYPE <= down <= 2 * 1.1 * PROTOTYPE
        up, down = traffic(running, "fedavg", rounds=2)
        up, down = up // (2 * CLIENTS), down // (2 * CLIENTS)
        print(f"FedAvg: {up} bytes up, {down} bytes down per client and round")
        assert MODEL <= up <= 1.1 * MODEL
