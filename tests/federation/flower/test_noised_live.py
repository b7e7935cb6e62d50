"""A live series after a run with a guarantee: each step is noised, charged once, and used."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.experts.private_run_sums import FederatedExperts
from fuels.federation.flower.live_messages import SUM
from fuels.federation.flower.runs import Current, start_live
from fuels.forecasting.saved_run import SavedRun
from fuels.privacy.ledger import Ledger, Release
from fuels.sharing.protection import DAY, LEDGER, MEAN
from fuels.sharing.received import FILE, ReceivedMean
from helpers.flower_world import SITES, World
from helpers.series import Series
from helpers.sums import NEWCOMER, change, join, make_world, private


def charged(series: Series, site: str) -> list[int]:
    """When the released steps of the series begin."""
    ledger = Ledger.opened(series.root / "sites" / site / "state" / LEDGER)
    spans = [(e.release.first, e.release.last) for e in ledger.find("run", MEAN)]
    assert 0 < ledger.epsilon <= 4
    return [first for first, last in spans if last - first == 3600]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Its mean day has no noise, so that no client is clipped around it."""
    root, noise = tmp_path_factory.mktemp("noised") / "world", Release.noise

    def some(self: Release, sites: int = 1, colluding: int = 0) -> np.ndarray:
        drawn = noise(self, sites, colluding)
        return np.zeros_like(drawn) if self.name == DAY else drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Release, "noise", some)
        make_world(root, private(), deadline=40.0).run()
    return root


@pytest.fixture
def series(trained: Path, tmp_path: Path) -> Series:
    shutil.copytree(trained, tmp_path / "world")
    return Series(tmp_path / "world")


def test_every_step_is_noised_charged_once_and_seen_by_the_experts(
    series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: Release, sites: int = 1, colluding: int = 0) -> np.ndarray:
        assert (sites, colluding) == (3, 1)
        return np.zeros(self.shape, dtype=np.int64)

    monkeypatch.setattr(Release, "noise", none)
    series.turn()
    series.give(3)
    series.network.lose.add(("north", SUM))
    series.turn(40.0)
    newest = int(series.later("north", 3).times[-1].astype("datetime64[s]").astype(int))
    expected = [newest - 3600 * back for back in (3, 2, 1, 0)]  # the last known one, and three more
    assert all(charged(series, site) == expected for site in SITES)
    sent = series.network.sums("north")
    assert len(sent) == 5 and len(set(sent)) == 4  # the lost one was repeated, byte for byte
    # Without noise, it would be the mean of all clients' values on their declared scale.
    values = np.concatenate([series.later(site, 3).values for site in SITES], axis=1)
    saved = SavedRun.load(series.run("south"))
    saved.forecast()
    assert saved.ensemble is not None and isinstance(saved.ensemble.sharing, FederatedExperts)
    memory = saved.memory()
    history = saved.ensemble.with_live_mean(saved.ensemble.history(memory.used))
    assert history.live is not None
    mean = ((values - 10) / 3).mean(axis=1)
    np.testing.assert_allclose(history.live[:, -3:], np.tile(mean, (2, 1)), atol=1e-3)


def test_the_noise_is_that_of_the_ledger_and_missing_values_stay_unknown(series: Series) -> None:
    series.turn()
    found = ReceivedMean.load(series.run("north") / FILE)
    assert found.count[-1] == 6 and np.isnan(found.own).all()
    ledger = Ledger.opened(series.root / "sites/north/state" / LEDGER)
    entry = ledger.find("run", MEAN)[-1]
    assert abs(found.total[-1]) < 8 * entry.release.sigma + 12
    later = series.later("east", 1)
    later.values[:, 0] = np.nan
    for site in SITES:
        new = later if site == "east" else series.later(site, 1)
        SavedRun.load(series.run(site)).forecast(new=new)
        series.network.arrived(site)
    series.turn()
    assert ReceivedMean.load(series.run("north") / FILE).count[-1] == 6
    assert len(charged(series, "east")) == 2


def test_a_newcomer_receives_noised_sums_and_has_released_nothing(series: Series) -> None:
    world = World.__new__(World)
    world.root = series.root
    join(world, "solo")
    later = Series(series.root, settings=private(), sites={**SITES, **NEWCOMER})
    later.turn()
    ledger = Ledger.opened(series.root / "sites/west/state" / LEDGER)
    assert not ledger.entries and not later.live.record.refusals
    later.give(2, *SITES)
    later.turn(40.0)
    assert later.live.record.last["sites"] == sorted(SITES)
    found = [ReceivedMean.load(later.run(site) / FILE).total[-2:] for site in ("north", "west")]
    np.testing.assert_array_equal(*found)


def test_who_may_not_go_on(series: Series) -> None:
    world = World.__new__(World)
    world.root = series.root
    change(world, "north", 'unit = "hour"', 'unit = "day"')
    (series.root / "sites/south/state" / LEDGER).unlink()
    series.turn()
    said = series.live.record.refusals
    assert "south (state/privacy.jsonl) is missing" in said["south"]
    assert "privacy.unit = hour, and site north demands day" in said["north"]
    server = series.live.folder
    file = server.runs / "run" / "config.toml"
    file.write_text(file.read_text().replace("[privacy]\n", '[privacy]\nunit = "client"\n'))
    Current(server).write(run="run", state="finished", live=False)
    with pytest.raises(FuelsError, match="each step would spend it again"):
        start_live(server)
