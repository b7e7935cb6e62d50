"""External inputs in files and frames: where they are found, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fuels.config import Data, Settings
from fuels.data.inputs import EVERYONE, aligned, merged, missing_notes, values_at, with_inputs
from fuels.data.joining import join_panels
from fuels.data.loading import load_inputs, load_panel
from fuels.data.merging import merge_panels
from fuels.data.panel import Panel
from fuels.data.writers import write_inputs, write_panel
from fuels.errors import FuelsError
from fuels.storage.panels import read_panel_file, save_panel
from helpers.panels import make_panel

HOURS = 30


def table(hours: int = HOURS, clients: int = 2) -> pl.DataFrame:
    """A long table with a temperature (the hour) and an event of each client."""
    times = [f"2024-01-{1 + h // 24:02d}T{h % 24:02d}:00" for h in range(hours)]
    return pl.DataFrame(
        {
            "client": [f"c{i}" for i in range(clients) for _ in times],
            "time": times * clients,
            "value": [float(10 * i + h % 7) for i in range(clients) for h in range(hours)],
            "temperature": [float(h) for _ in range(clients) for h in range(hours)],
            "event": [float(h % 5 == i) for i in range(clients) for h in range(hours)],
        }
    )


def load(tmp_path: Path, main: pl.DataFrame, second: pl.DataFrame | None = None, **data: object):
    main.write_csv(tmp_path / "main.csv")
    if second is not None:
        second.write_csv(tmp_path / "weather.csv")
        data["inputs_file"] = str(tmp_path / "weather.csv")
    names = data.pop("inputs", ("temperature", "event"))
    given = Data(source=str(tmp_path / "main.csv"), inputs=names, **data)  # type: ignore[arg-type]
    return load_panel(Settings(data=given))


def values(panel: Panel, name: str) -> np.ndarray:
    return aligned(panel, 0)[name]


def test_the_places_of_inputs_do_not_matter(tmp_path: Path) -> None:
    long = table()
    expected = load(tmp_path, long)
    assert expected.ids == ("c0", "c1") and set(expected.inputs) == {"temperature", "event"}
    np.testing.assert_array_equal(values(expected, "temperature"), np.tile(np.arange(30.0), (2, 1)))
    np.testing.assert_array_equal(values(expected, "event")[1], np.arange(30) % 5 == 1)
    bare, apart = long.drop("temperature", "event"), long.drop("value")
    found = [load(tmp_path, bare, apart)]  # with a client column
    shared = long.filter(pl.col("client") == "c0").select("time", "temperature")
    found.append(load(tmp_path, long.drop("temperature"), shared))  # one in each file
    assert found[-1].inputs["temperature"].ids == EVERYONE
    odd = long.rename({"value": "load"})  # numbers only: the inputs are not the values
    found.append(load(tmp_path, odd))
    wide = bare.pivot(on="client", index="time", values="value").join(shared, on="time")
    found.append(load(tmp_path, wide, apart.drop("temperature")))
    assert found[-1].ids == ("c0", "c1")
    for panel in found:
        np.testing.assert_array_equal(panel.values, expected.values)
        for name in expected.inputs:
            np.testing.assert_array_equal(values(panel, name), values(expected, name))


def test_inputs_may_go_on_after_the_values(tmp_path: Path) -> None:
    longer = table(HOURS + 6)
    ahead = pl.col("time") >= "2024-01-02T06:00"
    panel = load(tmp_path, longer.with_columns(value=pl.when(~ahead).then("value")))
    assert panel.length == HOURS and not np.isnan(panel.values[-1]).any()
    assert values(panel, "temperature").shape == (2, HOURS + 6)
    np.testing.assert_array_equal(aligned(panel, 3)["temperature"][0, :4], [np.nan] * 3 + [0.0])
    assert missing_notes(panel, ["event"], panel.ids, 6, 24) == []
    (note,) = missing_notes(panel, ["event"], panel.ids, 8, 24)
    assert "event has no value at 2 of the 8 steps ahead" in note
    (note,) = missing_notes(panel, ["price"], panel.ids, 1, 24)
    assert "24 of the last 24 steps and 1 of the 1 steps ahead" in note


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": ("temperatur",)}, "temperatur: there is no such column in"),
        ({"inputs": ("event", "event")}, "a name is given twice"),
        ({"inputs": ()}, "name the columns that are inputs"),
        ({"inputs": tuple(f"x{i}" for i in range(13))}, "names 13 columns; at most 12"),
    ],
)
def test_names_that_cannot_work(tmp_path: Path, change: dict[str, object], said: str) -> None:
    second = table().drop("value") if change["inputs"] == () else None
    with pytest.raises(FuelsError, match=said):
        load(tmp_path, table(), second, **change)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    long, bare = table(), table().drop("temperature", "event")
    weather = long.filter(pl.col("client") == "c0").select("time", "temperature")

    def refused(second: pl.DataFrame, said: str) -> None:
        with pytest.raises(FuelsError, match=said):
            load(tmp_path, bare, second, inputs=("temperature",))

    text = pl.lit("sunny")
    refused(weather.with_columns(temperature=text), "weather.csv: .*'sunny'")
    times = pl.col("time").str.to_datetime()
    half = weather.with_columns(time=times.dt.offset_by("30m").dt.strftime("%Y-%m-%dT%H:%M"))
    refused(half, "weather.csv: input temperature: its times do not fall on the steps of main")
    refused(
        weather[::3], "weather.csv: input temperature has a value every 3h, but the step of main"
    )
    twice = pl.concat([weather, weather.with_columns(temperature=pl.col("temperature") + 1)])
    refused(twice, "temperature: weather.csv: there is more than one row at 2024-01-01 00:00")
    zone = weather.with_columns(time=pl.col("time") + "Z")
    refused(zone, "its times have a time zone, and those of main have none")
    others = long.select(pl.col("client") + "x", "time", "temperature")
    refused(others, "'c0x', 'c1x', and none for the clients of main, such as 'c0'")
    refused(weather.with_columns(temperature=None), "weather.csv has no value from 2024-01-01")
    partly = weather.with_columns(
        temperature=pl.when(pl.col("temperature") > 2).then("temperature")
    )
    panel = load(tmp_path, bare, partly, inputs=("temperature",))
    assert "input temperature lacks 10.0 % of its values" in panel.notes[-1]
    given = Data(inputs=("temperature",))
    with pytest.raises(FuelsError, match="the embedded data have no such column"):
        load_panel(Settings(data=given))
    with pytest.raises(FuelsError, match=r"main\.csv has none of the inputs that the run was"):
        load_inputs(panel, replace(given, inputs_file=str(tmp_path / "main.csv")))
    with pytest.raises(FuelsError, match=r"inputs=temperature: .*sunny"):
        load(tmp_path, long.with_columns(temperature=text), inputs=("temperature",))


def test_marks_of_missing_values_are_not_those_of_inputs(tmp_path: Path) -> None:
    panel = load(tmp_path, table(), missing="0")
    assert np.isnan(panel.values).any() and (values(panel, "event") == 0).any()
    hourly = load(tmp_path, table(48), resample="2h", how="sum", inputs=("temperature",))
    np.testing.assert_array_equal(values(hourly, "temperature")[0, :2], [0.5, 2.5])  # means


def test_newer_inputs_take_precedence() -> None:
    whole = make_panel(clients=3, days=2)
    one = replace(whole, values=whole.values[:30])
    first = replace(one, values=np.arange(40.0)[:, None], ids=EVERYONE)
    second = replace(first, values=-np.ones((20, 1)), start=first.times[30])
    second.values[3] = np.nan
    late = replace(whole, values=whole.values[30:], start=whole.times[30])
    old, new = with_inputs(one, {"x": first}), with_inputs(late, {"x": second})
    expected = np.concatenate([np.arange(30.0), [-1, -1, -1, 33], -np.ones(16)])
    for panel in (join_panels(old, new), merge_panels(old, new).panel):
        np.testing.assert_array_equal(aligned(panel, 0)["x"][2], expected)
    own = replace(first, values=np.full((5, 1), 7.0), ids=("c1",), start=first.times[-1])
    both = merged({"x": first}, {"x": own})["x"]
    np.testing.assert_array_equal(
        values_at(both, ("c1",), both.start, 44)[0, 38:], [38, *[7.0] * 5]
    )


def test_inputs_are_stored_with_the_values(tmp_path: Path) -> None:
    panel = make_panel(clients=3, days=2)
    source = replace(panel, values=np.sqrt(np.arange(60.0))[:, None], ids=EVERYONE)
    own = replace(panel, values=panel.values[:20] * 0.5, start=panel.times[4])
    panel = with_inputs(panel, {"all / day": source, "own": own})
    save_panel(tmp_path / "panel.safetensors", panel)
    found, arrays, _ = read_panel_file(tmp_path / "panel.safetensors")
    assert not arrays
    write_inputs(panel, tmp_path / "inputs.parquet")
    write_panel(panel, tmp_path / "data.parquet")
    names, places = ("all / day", "own"), (tmp_path / "data.parquet", tmp_path / "inputs.parquet")
    data = Data(source=str(places[0]), inputs=names, inputs_file=str(places[1]))
    again = load_panel(Settings(data=data))
    for name in names:
        expected = aligned(panel, 5)[name]
        np.testing.assert_array_equal(aligned(found, 5)[name], expected)
        np.testing.assert_array_equal(aligned(again, 5)[name][:, : expected.shape[1]], expected)
