"""Untidy files through the commands: every command takes the options, and a run remembers them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from fuels.federation.flower.folders import SiteFolder
from helpers.commands import SMALL, Fuels

START = datetime(2024, 3, 1)
OPTIONS = ["--time-column", "Tag,Uhr", "--client-column", "Messstelle", "--value-column", "Menge"]
OPTIONS += ["--duplicates", "sum", "--missing=-1,9999", "--timezone", "UTC+1"]


def write_days(folder: Path, first: int, days: int) -> None:
    """A file per day: two parts of each value to add, a semicolon between columns."""
    folder.mkdir(exist_ok=True)
    for day in range(first, first + days):
        lines = ["Tag;Uhr;Messstelle;Menge"]
        for hour in range(24):
            time = START + timedelta(days=day, hours=hour)
            for name, level in (("Nord", 40), ("Süd", 90)):
                missing = hour == 5 and day % 3 == 1
                parts = (level + 2 * hour + day % 3, "9999" if missing else "0,5")
                lines += [f"{time:%d.%m.%Y};{time:%H:%M};{name};{part}" for part in parts]
        text = "\n".join([*lines, ""])
        (folder / f"{day:03}.csv").write_text(text, encoding="utf-16")


@pytest.fixture
def run(fuels: Fuels, tmp_path: Path) -> Path:
    write_days(tmp_path / "old", 0, 14)
    code, out, err = fuels("run", "--data", "old", *OPTIONS, "--out", "r", *SMALL)
    assert code == 0, err
    assert "training 2024-03-01 00:00 to" in out and "% of the values (WAPE)" in out
    assert "14 files were read as one table; " in out
    assert "672 duplicate rows (same client and time): the sum was used" in out
    return tmp_path / "r"


def test_a_run_remembers_how_its_files_are_read(fuels: Fuels, run: Path, tmp_path: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["data"]["clients"] == 2 and summary["data"]["name"] == "old"
    assert summary["data"]["parts"]["test"][1] == "2024-03-14 23:00"
    assert 0 < summary["wape"][summary["title"]] < 1
    code, _, err = fuels("run", "--config", "r/config.toml", "--out", "again", *SMALL)
    assert code == 0, err
    again = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert again["scores"] == summary["scores"]
    write_days(tmp_path / "new", 14, 1)
    code, out, err = fuels("forecast", "r", "--data", "new/*.csv")
    assert code == 0, err
    table = pl.read_csv(out.encode())
    assert table["client"].to_list() == ["Nord", "Süd"]
    assert str(table["time"][0]).startswith("2024-03-16T00:00:00")


def test_all_commands_take_the_options(fuels: Fuels, tmp_path: Path) -> None:
    write_days(tmp_path / "old", 0, 3)
    code, out, err = fuels("data", "describe", "old/000.csv", "old/001.csv", *OPTIONS, "--json")
    assert code == 0, err
    described = json.loads(out)
    assert described["steps"] == 48 and described["missing_share"] == pytest.approx(1 / 48)
    assert described["clock"] == "fixed offset UTC+1"
    code, _, err = fuels("data", "convert", "old", *OPTIONS, "--out", "p.parquet")
    assert code == 0, err
    code, out, _ = fuels("data", "describe", "p.parquet", "--json")
    assert json.loads(out)["missing_share"] == pytest.approx(1 / 72)


def test_describe_points_out_codes_for_missing(fuels: Fuels, tmp_path: Path) -> None:
    rows = [f"{START + timedelta(hours=i)},{-1 if i % 9 == 0 else i % 24 * 5}" for i in range(96)]
    (tmp_path / "c.csv").write_text("\n".join(["time,a", *rows, ""]))
    code, out, _ = fuels("data", "describe", "c.csv")
    assert code == 0 and "-1 occurs 11 times" in out and "give --missing=-1" in out
    code, out, _ = fuels("data", "describe", "c.csv", "--missing=-1")
    assert code == 0 and "occurs" not in out


def test_a_site_has_the_same_settings(tmp_path: Path) -> None:
    write_days(tmp_path / "old", 0, 1)
    data = {"source": str(tmp_path / "old"), "duplicates": "sum", "time_column": "Tag,Uhr"}
    data["inputs_file"] = "weather.csv"  # relative to the folder
    lines = [f"{key} = {json.dumps(value)}" for key, value in data.items()]
    head = ['name = "one"', 'server = "localhost:1"', "[data]"]
    (tmp_path / "site.toml").write_text("\n".join([*head, *lines]))
    config = SiteFolder(tmp_path).config_for("")
    assert config.data.duplicates == "sum" and config.data.time_column == "Tag,Uhr"
    assert config.data.inputs_file == str(tmp_path.resolve() / "weather.csv")
