"""A finished run asked for forecasts: which data count, what is learned, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fuels.config import PRESETS, Data, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.experts.ensemble import Ensemble
from fuels.forecasting.folder import LEARNED
from fuels.forecasting.forecaster import Forecaster
from fuels.forecasting.saved_run import SavedRun
from fuels.forecasting.table import long_frame
from fuels.runs.run import run
from fuels.storage.run_folder import RunFolder
from helpers.commands import Fuels
from helpers.panels import make_panel

DAYS, TRAIN = 20, 14
NEW = 72  # newest steps in a file of their own


@pytest.fixture(scope="module")
def panel() -> Panel:
    return make_panel(clients=4, days=DAYS)


@pytest.fixture(scope="module")
def made(panel: Panel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of preset best on all data but the newest, which new.csv holds."""
    folder = tmp_path_factory.mktemp("finished")
    write_panel(part(panel, 0, panel.length - NEW), folder / "old.csv")
    write_panel(part(panel, panel.length - NEW, panel.length), folder / "new.csv")
    write_panel(panel, folder / "all.csv")
    settings = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    changes = {
        "data": {"source": str(folder / "old.csv")},
        "windows": {"split": f"{TRAIN}/1/2"},
        "model": {"hidden": 6},
        "training": {"rounds": 2},
    }
    settings = merge(settings, changes, "test")
    run(settings, Engine(threads=1), RunFolder(folder / "run"))
    return folder


def part(panel: Panel, first: int, last: int) -> Panel:
    return replace(panel, values=panel.values[first:last].copy(), start=panel.times[first])


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(made / "run", tmp_path / "run")
    for name in ("new.csv", "all.csv"):
        shutil.copy(made / name, tmp_path / name)
    return tmp_path


def forecasts(fuels: Fuels, *words: str) -> tuple[dict[str, float], str]:
    """The first forecast of every client by command, and what was said beside."""
    code, out, err = fuels("forecast", "run", *words)
    assert code == 0, err
    table = pl.read_csv(out.encode())
    first = table.filter(pl.col("time") == table["time"].min())
    return dict(zip(first["client"], first["forecast"], strict=True)), err


def test_the_newest_values_alone_are_enough(fuels: Fuels, folder: Path) -> None:
    """The run's own data stand before them: a longer file says nothing else."""
    short, _ = forecasts(fuels, "--data", "new.csv", "--horizon", "3")
    (folder / "run" / "learned.safetensors").unlink()
    whole, _ = forecasts(fuels, "--data", "all.csv", "--horizon", "3")
    assert len(short) == 4 and short == pytest.approx(whole, rel=1e-6)


def test_a_run_stays_as_it_was(fuels: Fuels, folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in (folder / "run").iterdir() if file.is_file()}
    first, _ = forecasts(fuels)
    second, _ = forecasts(fuels, "--data", "new.csv")
    after = {file.name: file.read_bytes() for file in (folder / "run").iterdir() if file.is_file()}
    assert set(after) - set(before) == {"learned.safetensors"}
    assert all(after[name] == content for name, content in before.items())
    assert forecasts(fuels)[0] == second != first  # new.csv is remembered
    again, told = forecasts(fuels, "--to", "2024-01-17")  # older data than it has learned from
    assert again == pytest.approx(first, rel=1e-4) and "fitted again" in told
    assert forecasts(fuels)[0] == second


def test_what_was_learned_can_be_forgotten(fuels: Fuels, folder: Path, panel: Panel) -> None:
    first, _ = forecasts(fuels)
    wanted, _ = forecasts(fuels, "--data", "new.csv", "--forget")
    wild = part(panel, panel.length - NEW, panel.length)
    wild.values[...] = np.random.default_rng(0).normal(50, 500, wild.values.shape)
    write_panel(wild, folder / "wild.csv")
    spoilt, told = forecasts(fuels, "--data", "wild.csv")
    assert spoilt != pytest.approx(wanted, rel=1e-3)
    assert "288 revised values of 4 clients (c0, c1, c2, c3)" in told and "learned again" in told
    assert forecasts(fuels, "--data", "new.csv")[0] == wanted  # the last value counts
    forecasts(fuels, "--data", "wild.csv")
    assert forecasts(fuels, "--forget")[0] == first
    assert not (folder / "run" / "live" / "values.safetensors").exists()


def test_the_data_of_the_run_may_move(fuels: Fuels, folder: Path) -> None:
    wanted, _ = forecasts(fuels, "--data", "new.csv", "--horizon", "2", "--forget")
    config = folder / "run" / "config.toml"
    config.write_text(config.read_text().replace("old.csv", "gone.csv"))
    found, told = forecasts(fuels, "--data", "new.csv", "--horizon", "2", "--forget")
    assert found == wanted and "note" not in told


def test_without_the_values_of_the_run_the_new_ones_stand_alone(fuels: Fuels, folder: Path) -> None:
    """A run of an earlier version whose data are gone: a long file may bring them back."""
    config, history = folder / "run" / "config.toml", folder / "run" / "history.safetensors"
    history.unlink()
    wanted, _ = forecasts(fuels, "--data", "new.csv")  # stores what it reads
    assert history.is_file()
    history.unlink()
    config.write_text(config.read_text().replace("old.csv", "gone.csv"))
    _, told = forecasts(fuels, "--data", "new.csv", "--forget")
    assert "use only the new data" in told and "gone.csv" in told
    assert (folder / "run" / "learned.safetensors").exists()
    code, _, err = fuels("forecast", "run", "--data", "new.csv", "--horizon", "2")
    assert code == 1 and "as many steps (--horizon)" in err and "are not fitted yet" in err
    found, _ = forecasts(fuels, "--data", "all.csv", "--horizon", "2")
    assert history.is_file() and found == pytest.approx(wanted, rel=1e-2)


def test_a_run_without_its_mixture_or_its_end_is_refused(fuels: Fuels, folder: Path) -> None:
    (folder / "run" / "mixture.safetensors").rename(folder / "kept")
    code, _, err = fuels("forecast", "run")
    assert code == 1 and "mixture.safetensors is missing" in err
    (folder / "kept").rename(folder / "run" / "mixture.safetensors")
    (folder / "run" / "summary.json").unlink()
    code, _, err = fuels("forecast", "run")
    assert code == 1 and "not finished" in err and "--resume" in err


def test_a_forecast_for_some_clients_leaves_the_others_alone(fuels: Fuels, folder: Path) -> None:
    wanted, _ = forecasts(fuels, "--data", "new.csv", "--horizon", "2")
    some, told = forecasts(fuels, "--data", "new.csv", "--horizon", "2", "--ids", "c1", "--forget")
    assert set(some) == {"c1"} and "newest value of 3 clients (c0, c2, c3) is missing" in told
    found, told = forecasts(fuels, "--data", "new.csv", "--horizon", "2")
    assert "216 late values of 3 clients (c0, c2, c3)" in told
    assert found == wanted and some["c1"] == wanted["c1"]


def test_a_client_that_is_absent_holds_nobody_up(fuels: Fuels, folder: Path, panel: Panel) -> None:
    """The others learn as if it were there; its values may follow within seven days."""
    first, middle = panel.length - NEW, panel.length - NEW + 24
    two = part(panel, first, middle)
    write_panel(two.select(["c0", "c1", "c3"]), folder / "absent.csv")
    there, _ = forecasts(fuels, "--data", "new.csv", "--to", "2024-01-18")
    absent, told = forecasts(fuels, "--data", "absent.csv", "--forget")
    assert "the newest value of 1 client (c2) is missing" in told
    for client in ("c0", "c1", "c3"):
        assert absent[client] == there[client]
    assert absent["c2"] != there["c2"]
    write_panel(part(panel, first, middle).select(["c2"]), folder / "late.csv")
    found, told = forecasts(fuels, "--data", "late.csv")
    assert "24 late values of 1 client (c2) from 2024-01-18 00:00" in told and found == there


def test_blank_rows_are_not_the_present(fuels: Fuels, folder: Path, panel: Panel) -> None:
    new = part(panel, panel.length - NEW, panel.length)
    blank = np.full((12, len(panel.ids)), np.nan)
    write_panel(replace(new, values=np.concatenate([new.values, blank])), folder / "blank.csv")
    expected, _ = forecasts(fuels, "--data", "new.csv")
    shutil.copy(folder / "run" / LEARNED, folder / "expected")
    said, told = forecasts(fuels, "--data", "blank.csv", "--forget")
    assert said == expected and "the last 12 steps have no value" in told
    assert (folder / "run" / LEARNED).read_bytes() == (folder / "expected").read_bytes()


def test_a_newest_value_that_is_missing_is_told(fuels: Fuels, folder: Path, panel: Panel) -> None:
    new = part(panel, panel.length - NEW, panel.length)
    late = new.values.copy()
    late[-2:, 1] = np.nan
    write_panel(replace(new, values=late), folder / "late.csv")
    assert (
        "the newest value of 1 client (c1) is missing" in forecasts(fuels, "--data", "late.csv")[1]
    )
    assert "is missing" not in forecasts(fuels, "--data", "new.csv", "--forget")[1]


def test_experts_of_an_absent_client_are_fitted_on_its_own_past(
    fuels: Fuels, folder: Path, panel: Panel
) -> None:
    """A horizon asked for while it was absent; without any past of it they are not kept."""
    three = ["c0", "c1", "c3"]
    new = part(panel, panel.length - NEW, panel.length)
    write_panel(new.select(three), folder / "absent.csv")
    write_panel(panel.select(three), folder / "long.csv")

    def learned(*words: str) -> Ensemble:
        forecasts(fuels, *words, "--horizon", "2", "--forget")
        ensemble = SavedRun.load(folder / "run").ensemble
        assert ensemble is not None
        return ensemble

    whole, some = learned("--data", "new.csv"), learned("--data", "absent.csv")
    wanted, found = (ensemble.horizons[2].pool.arrays() for ensemble in (whole, some))
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, err_msg=name)
    config = folder / "run" / "config.toml"
    config.write_text(config.read_text().replace("old.csv", "gone.csv"))
    (folder / "run" / "history.safetensors").unlink()
    assert set(learned("--data", "long.csv").horizons) == {1}
    assert set(learned("--data", "all.csv").horizons) == {1, 2}


def test_models_alone_know_no_data(fuels: Fuels, folder: Path) -> None:
    (folder / "run" / "config.toml").unlink()
    words = ("forecast", "run/models.safetensors")
    assert fuels(*words)[0] == 0  # the values of the run are in its folder
    (folder / "run" / "history.safetensors").unlink()
    code, _, err = fuels(*words)
    assert code == 1 and "--data" in err
    code, _, err = fuels(*words, "--data", "new.csv")
    assert code == 0 and "use only the new data" in err


def test_python_and_the_command_line_say_the_same(fuels: Fuels, folder: Path) -> None:
    said, _ = forecasts(fuels, "--data", "new.csv")
    loaded = Forecaster.load(folder / "run")
    frame = pl.read_csv(folder / "new.csv", try_parse_dates=True)
    made = loaded.predict(1, frame.rename({"client": "unique_id", "time": "ds", "value": "y"}))
    assert dict(zip(made["unique_id"], made["FUELS"], strict=True)) == pytest.approx(said, rel=1e-4)
    loaded.predict(1)  # from the data of the run
    (folder / "run" / "mixture.safetensors").unlink()
    with pytest.raises(FuelsError, match="safetensors is missing"):
        Forecaster.load(folder / "run")


def test_what_lies_before_the_training_does_not_count(folder: Path, panel: Panel) -> None:
    earlier = np.random.default_rng(1).normal(50, 9, (10 * 24, len(panel.ids)))
    longer = replace(
        panel,
        values=np.concatenate([earlier, panel.values]),
        start=panel.start - np.timedelta64(10, "D"),
    )
    said = [
        SavedRun.load(folder / "run", forget=True).forecast(one, 2)[0] for one in (panel, longer)
    ]
    np.testing.assert_array_equal(said[0].values, said[1].values)


def test_saving_over_another_leaves_nothing_of_it(panel: Panel, tmp_path: Path) -> None:
    frame = long_frame(panel)
    small = {"model": {"hidden": 4}}
    best = Forecaster(rounds=1, settings=small, threads=1).fit(frame)
    paper = Forecaster(rounds=1, settings=small, threads=1, preset="paper").fit(frame)
    best.save(tmp_path / "f")
    paper.save(tmp_path / "f", overwrite=True)
    (tmp_path / "f").rename(tmp_path / "moved")
    assert Forecaster.load(tmp_path / "moved").predict(2).equals(paper.predict(2))


def test_times_in_another_zone_are_the_same_moments(made: Path, panel: Panel) -> None:
    finished = SavedRun.load(made / "run")
    zoned = replace(panel, timezone="Asia/Tokyo")
    with pytest.raises(
        FuelsError, match="in Asia/Tokyo, but those of the training data were without a"
    ):
        finished.forecast(zoned)
    models = replace(finished.models, timezone="Asia/Tokyo")
    (made / "elsewhere").mkdir()
    made_of = {"folder": made / "elsewhere", "data": Data(source="")}
    east = replace(finished, models=models, ensemble=None, forget=True, **made_of)
    there, _ = east.forecast(zoned)
    utc, _ = east.forecast(replace(panel, timezone="UTC"))
    np.testing.assert_array_equal(there.values, utc.values)
    assert utc.timezone == "Asia/Tokyo"


def test_models_alone_take_the_mixture_beside_them(fuels: Fuels, folder: Path) -> None:
    """Without config.toml the same forecasts, and without the mixture too a word about it."""
    run = folder / "run"
    told, _ = forecasts(fuels, "--data", "all.csv")
    (run / "learned.safetensors").unlink()
    (run / "config.toml").unlink()
    code, out, err = fuels("forecast", "run/models.safetensors", "--data", "all.csv")
    assert code == 0, err
    table = pl.read_csv(out.encode())
    mixed = dict(zip(table["client"], table["forecast"], strict=True))
    assert mixed == pytest.approx(told, rel=1e-6)
    (run / "mixture.safetensors").unlink()
    code, out, err = fuels("forecast", "run/models.safetensors", "--data", "all.csv")
    assert code == 0 and "without the experts" in err
    table = pl.read_csv(out.encode())
    alone = dict(zip(table["client"], table["forecast"], strict=True))
    assert alone != pytest.approx(told, rel=1e-3)


def test_what_is_not_known_in_between_is_told(fuels: Fuels, folder: Path, panel: Panel) -> None:
    late = panel.length - NEW + 30
    write_panel(part(panel, late, panel.length), folder / "late.csv")
    _, err = forecasts(fuels, "--data", "late.csv")
    assert "late: no data from" in err and "(30 steps)" in err
    write_panel(part(panel, panel.length - NEW + 1, panel.length), folder / "next.csv")
    _, err = forecasts(fuels, "--data", "next.csv", "--forget")
    assert "no data at 2" in err
    _, err = forecasts(fuels, "--data", "new.csv", "--forget")
    assert "no data" not in err
    loaded = Forecaster.load(folder / "run")
    with pytest.warns(UserWarning, match=r"no data from .* \(30 steps\)"):
        loaded.predict(1, long_frame(part(panel, late, panel.length)))


def test_forgetting_waits_for_the_forecast(fuels: Fuels, folder: Path) -> None:
    forecasts(fuels, "--data", "new.csv")
    learned = (folder / "run" / "learned.safetensors").read_bytes()
    code, _, err = fuels("forecast", "run", "--forget", "--data", "nothing.csv")
    assert code == 1 and "nothing.csv" in err
    assert (folder / "run" / "learned.safetensors").read_bytes() == learned


def test_a_run_with_names_of_its_own_is_saved_and_read_again(fuels: Fuels, folder: Path) -> None:
    """What save writes is a panel: the names of columns belong to the file before it."""
    names = {"client": "cell", "time": "when", "value": "traffic"}
    pl.read_csv(folder / "all.csv").rename(names).write_csv(folder / "named.csv")
    words = ("--client-column", "cell", "--time-column", "when", "--value-column", "traffic")
    size = ("--set", "model.hidden=4", "--rounds", "1", "--split", "14/1/2", "--no-plots")
    code, _, err = fuels("run", "--data", "named.csv", *words, *size, "--out", "named")
    assert code == 0, err
    loaded = Forecaster.load("named")
    loaded.save("saved")
    assert Forecaster.load("saved").predict(2).equals(loaded.predict(2))
    code, out, err = fuels("forecast", "saved")
    assert code == 0, err
    assert out == fuels("forecast", "named")[1]
    code, _, err = fuels("forecast", "saved", "--data", "named.csv")  # in the same names
    assert code == 0, err


def test_a_folder_of_models_alone_says_what_to_do(fuels: Fuels, folder: Path) -> None:
    (folder / "bare").mkdir()
    shutil.copy(folder / "run" / "models.safetensors", folder / "bare")
    code, _, err = fuels("forecast", "bare", "--data", "all.csv")
    assert code == 1 and "no config.toml or summary.json" in err
    assert "give bare/models.safetensors" in err
    with pytest.warns(UserWarning, match=r"without config.toml, the data of the run"):
        loaded = Forecaster.load(folder / "bare" / "models.safetensors")
    frame = long_frame(make_panel(clients=4, days=DAYS))
    assert len(loaded.predict(1, frame)) == 4
    code, _, err = fuels("forecast", "run/mixture.safetensors", "--data", "all.csv")
    assert code == 1 and "mixture.safetensors: contains no models" in err


def test_data_before_the_training_ended_are_refused_without_a_contradiction(
    fuels: Fuels, folder: Path
) -> None:
    forecasts(fuels, "--data", "new.csv")
    code, _, err = fuels("forecast", "run", "--to", "2024-01-10")
    assert code == 1 and "before the end of the training" in err and "fitted again" not in err


@pytest.mark.parametrize("again", [1, 2])
def test_a_run_of_version_0_1_0_gives_the_same_forecasts(
    again: int, fuels: Fuels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it continues from what the first forecast has saved."""
    saved = Path(__file__).parents[1] / "data_files" / "run-0.1.0"
    shutil.copytree(saved, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")  # its config names data.csv
    for _ in range(again):
        code, out, err = fuels("forecast", ".", "--horizon", "2")
        assert code == 0, err
    expected = pl.read_csv(saved / "expected.csv")
    found = pl.read_csv(out.encode())
    assert found.columns == expected.columns and len(found) == 4
    np.testing.assert_allclose(found["forecast"], expected["forecast"], rtol=1e-6)
    for level in (80, 95):  # its intervals are converted
        width, before = (f[f"upper-{level}"] - f[f"lower-{level}"] for f in (found, expected))
        assert (found[f"lower-{level}"] <= found["forecast"]).all()
        assert (found["forecast"] <= found[f"upper-{level}"]).all()
        assert (width / before).min() > 0.5 and (width / before).max() < 2


def test_forecasts_stay_in_a_range_that_is_given_later(fuels: Fuels, folder: Path) -> None:
    free, _ = forecasts(fuels, "--data", "new.csv")
    least = max(free.values()) - 1e-3
    bounded, _ = forecasts(fuels, "--data", "new.csv", "--at-least", str(least))
    assert bounded == {client: max(value, least) for client, value in free.items()}
    code, out, err = fuels("forecast", "run", "--data", "new.csv")  # it is remembered
    assert code == 0, err
    assert pl.read_csv(out.encode())["lower-95"].min() == pytest.approx(least)
    code, _, err = fuels("forecast", "run", "--at-most", "much")
    assert code == 1 and "must be a number or none" in err
