"""The shortest federation that has everything: server, two sites, TLS, keys, two rounds."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fuels.data.readers import read_panel
from fuels.experts.personal_model import forecast
from fuels.federation.flower.folders import Rules
from fuels.storage.models import load_models
from helpers.cluster import cluster
from helpers.flower_world import settings

pytest.importorskip("flwr")


def test_two_sites_two_rounds(tmp_path: Path) -> None:
    sites = {"north": ["a", "c"], "south": ["b", "d"]}
    rules = Rules(deadline=120.0, join=120.0, quorum=1.0)
    with cluster(tmp_path / "fed", sites, rules) as running:
        run = running.submit(settings(rounds=2))
        history = running.finish(run, 300)
        for path in (tmp_path / "fed").rglob("*.key"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [line["clients"] for line in history] == [4, 4]
    assert history[1]["numbers_down"] == 2 * history[1]["numbers_up"] == 2 * 24 * 16
    for site, ids in sites.items():
        models = load_models(running.site_run(site, run) / "models.safetensors")
        assert models.ids == tuple(ids)
        panel = read_panel(tmp_path / "fed.csv")
        assert forecast(models, panel, horizon=3).values.shape == (2, 3)
    assert all(process.poll() is not None for process in running.processes.running.values())
