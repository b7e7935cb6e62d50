"""FUELS on real traffic: a small version of the run that the README reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fuels.build import build, load_dataset
from fuels.config import Engine, Settings, merge
from fuels.references import references
from fuels.scores import score


def milan(real_data: Path, **changes: object) -> Settings:
    source = str(real_data / "milan_net_441cells_hourly.npz")
    settings = merge(Settings(), {"data": {"source": source}}, "test")
    return merge(settings, changes, "test")


def test_all_cells_but_one_take_part(real_data: Path) -> None:
    dataset = load_dataset(milan(real_data))
    assert len(dataset.ids) == 440 and list(dataset.left_out) == ["4570"]
    assert (dataset.split.train, dataset.split.val, dataset.split.test) == (960, 1224, 1487)


def test_the_drawn_cells_and_days(real_data: Path) -> None:
    settings = milan(real_data, data={"clients": 100}, windows={"split": "40/0/11"})
    dataset = load_dataset(settings)
    live = np.array(load_dataset(milan(real_data)).ids)
    expected = np.random.default_rng(0).choice(live, 100, replace=False)
    assert dataset.ids == tuple(sorted(expected))
    times = dataset.times("test")
    assert str(times[0]) == "2013-12-11T00:00:00" and str(times[-1]) == "2013-12-21T23:00:00"
    # The references as measured on these 100 cells and days.
    found = {
        name: score(dataset, "test", f).means() for name, f in references(dataset, "test").items()
    }
    assert abs(found["last value"]["mse"] - 0.106) < 0.01
    assert abs(found["ridge"]["mse"] - 0.062) < 0.006
    assert abs(found["ridge + time of period"]["mse"] - 0.048) < 0.005


def test_fuels_learns_real_traffic(real_data: Path) -> None:
    settings = milan(
        real_data,
        data={"clients": 12},
        windows={"split": "40/0/11"},
        training={"rounds": 15, "learning_rate": 0.003},
    )
    job = build(settings, Engine())
    job.loop.run()
    models = job.site.models(job.loop.final_download())
    mse = score(job.dataset, "test", job.site.forecast(models, "test")).means()["mse"]
    last = score(job.dataset, "test", references(job.dataset, "test")["last value"]).means()["mse"]
    assert mse < 0.75 * last
