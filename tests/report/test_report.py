"""report.html: its numbers are those of the files, nothing is markup that should be text."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fuels.errors import FuelsError
from fuels.experts.ensemble import forecast_ensemble
from fuels.forecasting.saved_run import SavedRun
from fuels.report.families import PERSONAL, SHARED, SIMPLE
from fuels.report.federation import federation_page
from fuels.report.page.elements import Html, el, sortable
from fuels.report.page.svg import Chart, Figures, compact, ticks
from fuels.report.run.charts import draw_ahead, longest, telling_part
from fuels.report.run.details import telling_clients
from fuels.report.run.files import RunFiles, Series, read_run
from fuels.report.run.mixture import consequences
from fuels.report.run.report import run_page, write_run_report
from fuels.report.study import Bars, Part, study_page
from fuels.report.style import number
from fuels.report.tables import Column, Table, columns
from fuels.runs.ahead import steps_ahead
from helpers.commands import Fuels
from helpers.panels import make_panel
from helpers.runs import do_run, small
from report.conftest import AS_READ, NASTY

VOID = {"meta", "input", "img", "br"}


class Structure(HTMLParser):
    """Checks that elements are closed in order, and collects what the page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def run(reported: Path) -> RunFiles:
    return read_run(reported)


@pytest.fixture(scope="module")
def text(reported: Path) -> str:
    return (reported / "report.html").read_text(encoding="utf-8")


def plain(text: str) -> str:
    """The text that a reader sees."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", body))


# -- the page of a run -------------------------------------------------------------------------


def test_the_page_is_well_formed_and_needs_nothing_else(text: str) -> None:
    page = Structure(text)
    assert len(page.of("script")) == 1 and not page.of("link") and not page.of("img")
    policy = page.of("meta")[1]["content"]
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:; script-src")
    assert not re.search(r"https?:|url\(|@import|\ssrc=|\sstyle=|\son\w+=", text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"] for attributes in page.of("a")}
    assert links <= {f"#{name}" for name in ids}
    assert len(page.of("h1")) == 1 and len(page.of("h2")) == 13
    for drawing in page.of("svg"):
        assert drawing["role"] == "img" and set(str(drawing["aria-labelledby"]).split()) <= set(ids)
    assert len(page.of("caption")) == len(page.of("table"))
    assert {head.get("scope") for head in page.of("th")} == {"col", "row"}


def test_names_and_units_are_text(text: str) -> None:
    assert NASTY not in text and html.escape(NASTY) in text
    assert "kWh <b>" not in text and "kWh &lt;b&gt;" in text
    assert "a&b" not in text and "a&amp;b" in text


def test_its_numbers_are_those_of_the_files(reported: Path, run: RunFiles, text: str) -> None:
    summary = json.loads((reported / "summary.json").read_text())
    seen = plain(text)
    mae = number(summary["scores"]["FUELS"]["mae_unit"], 3)
    assert f"the forecasts were off by {mae} kWh <b> on average" in seen
    for dates in summary["data"]["parts"].values():
        assert f"{dates[0]} to {dates[1]}" in seen
    covered = 100 * summary["mixture"]["intervals"]["95"]["coverage"]
    assert f"the 95 % intervals contained {covered:.1f} % of the actual values" in seen
    assert (reported / "config.toml").read_text() in seen
    errors = pl.read_parquet(reported / "errors.parquet")
    means = errors.group_by("forecast").agg(pl.col("mse", "mae", "mse_unit", "mae_unit").mean())
    for name, *values in means.iter_rows():
        np.testing.assert_allclose(values, list(summary["scores"][name].values()), rtol=1e-12)
    own = errors.filter(pl.col("forecast") == "FUELS")["mae_unit"].to_list()
    series = run.forecasts
    assert series is not None
    np.testing.assert_allclose(np.nanmean(series.error, axis=1), own, rtol=1e-5)
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th><td class="n" data-v="([^"]*)"', text)
    table = {html.unescape(name): float(value) for name, value in rows}
    assert table == pytest.approx(dict(zip(series.ids, own, strict=True)), rel=1e-5)


def test_failures_are_shown_where_they_happened(run: RunFiles, text: str) -> None:
    """Every missed value of the days shown has a mark, which names its time and numbers."""
    series = run.forecasts
    assert series is not None
    missed = (series.actual < series.lower[1]) | (series.actual > series.upper[1])
    shown = 0
    for client in telling_clients(run, series):
        first, last = telling_part(series, client, 24)
        assert first <= np.nanargmax(series.error[client]) < last
        shown += int(missed[client, first:last].sum())
    assert shown and text.count('class="miss"') == 2 * shown  # on a wide and on a narrow screen
    client, step = np.argwhere(missed)[0]
    for each in telling_clients(run, series):
        if missed[each].any():
            client, step = each, int(np.flatnonzero(missed[each])[-1])
    actual = number(float(series.actual[client, step]))
    when = f"{series.times[step]:%H:%M}: actual {actual}, forecast"
    assert f"<title>{series.times[step]:%a} " in text and when in text


def test_times_are_local(run: RunFiles) -> None:
    """Days begin at midnight in Rome, and so does the test part."""
    series = run.forecasts
    assert series is not None
    assert series.times[0].isoformat() == "2024-01-10T00:00:00+01:00"


def test_an_old_run_has_a_report_of_what_it_stored(reported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(reported, folder)
    for name in ("errors", "ahead", "weights", "coverage"):
        (folder / f"{name}.parquet").unlink()
    summary = json.loads((folder / "summary.json").read_text())
    del summary["data"]["parts"], summary["wape"], summary["sharing"], summary["seconds"]
    for found in summary["mixture"]["intervals"].values():
        del found["by_phase"], found["by_client"]
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.toml").unlink()
    page = write_run_report(folder).read_text()
    Structure(page)
    seen = plain(page)
    assert "No forecasts beyond the data are stored" in seen and "Worst: client" in seen
    assert "it does not say what federation adds" in " ".join(seen.split())
    (folder / "forecasts.parquet").write_text("damaged")
    with pytest.raises(FuelsError, match=r"forecasts\.parquet: cannot be read"):
        write_run_report(folder)


def test_a_run_without_a_test_part_says_so(run: RunFiles) -> None:
    """Such a run may have shared sums."""
    summary = {**run.summary, "scores": {}, "wape": {}}
    summary = {k: v for k, v in summary.items() if k not in ("mixture", "best_reference")}
    bare = replace(
        run, summary=summary, forecasts=None, ahead=None, errors={}, weights={}, inside={}
    )
    page = run_page(bare)
    Structure(page)
    assert "Accuracy is not known" in page and "Errors of every client" not in page


def test_a_hundred_clients_fit_into_three_megabytes(run: RunFiles) -> None:
    series = run.forecasts
    assert series is not None
    ids = tuple(f"client number {i}" for i in range(100))

    def many(values: Any, axis: int) -> Any:
        return np.repeat(np.repeat(values, 9, axis)[..., :100, :], 4, axis=-1)

    steps = 4 * len(series.times)
    times = tuple(series.times[0] + i * series.step for i in range(steps))
    large = Series(
        ids, times, many(series.forecast, 0), many(series.actual, 0), series.levels,
        many(series.lower, 1), many(series.upper, 1),
    )  # fmt: skip
    page = run_page(replace(run, forecasts=large, errors={}, weights={}, inside={}))
    assert page.count("<tr>") > 100 and len(page.encode()) < 1e6


# -- other pages -------------------------------------------------------------------------------

SERVER = {
    "method": "fuels",
    "version": "0.1.0",
    "rounds": 2,
    "best_round": 2,
    "best_val_mse": 0.25,
    "counters": {"bytes_up": 5000, "bytes_down": 2500, "messages": 12, "refused": 2},
    "refused": {"north": {"too large": 2}},
    "excluded": ["<i>"],
    "unused_uploads": {"c1": 1},
    "totals": {"numbers_up": 1000.0, "numbers_down": 500.0},
    "sites": {"north": 3, "south": 2},
    "unconfirmed": ["south"],
}
HISTORY = [
    {"round": i, "clients": 5, "loss_prediction": 1 / i, "val_mse": 1 / i, "failures": []}
    for i in (1, 2)
]


def test_the_page_of_a_server() -> None:
    HISTORY[1]["failures"] = ["south: no reply within 60 s"]
    page = federation_page("run-1", SERVER, HISTORY, "seed = 0\n")
    Structure(page)
    seen = " ".join(plain(page).split())
    assert "2 sites trained personal forecasters for 5 clients together with FUELS" in seen
    assert "south has not confirmed that the models were saved." in seen
    assert "Uploads of all clients 4.00 kB" in seen and "Round 2: south: no reply" in seen
    assert "12, 5.00 kB received and 2.50 kB sent" in seen
    assert "Refused from north, 2 times: too large" in seen
    assert "<i>" not in page.split("refused or left out too often: ")[1][:10]


def test_the_page_of_a_study(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    rows = [["A", 1.5], ["B <x>", 2.5], ["ref", 9.0]]
    table = Table(columns("method | MSE (z-scored) ↓"), rows, notes=["first & last"])
    bars = Bars("MSE", {"A": 1.5, "B <x>": 2.5, "ref": 9.0}, {"A": 0.5}, ["A", "B <x>"])
    parts = [Part("one", table, bars)]
    page = study_page(
        "Study", "2 methods", "fuels compare", parts, ["note"], {"a": tmp_path / "a.png"}
    )
    found = Structure(page)
    assert "B &lt;x&gt;" in page and "B <x>" not in page and "first &amp; last" in page
    assert found.of("img")[0]["alt"] == "Study: a"
    assert "1.500<span" in page.replace("<strong>", "") and "1.500 ± 0.50" in page
    assert page.count('class="whisker"') == 2  # wide and narrow


def test_report_refuses_what_is_no_finished_run(fuels: Fuels, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text("seed = 0\n")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "compare.json").write_text("{}")
    for folder, reason in {
        "begun": "begun: this run is not finished, summary.json is missing",
        "none": "none: no run is here, summary.json is missing",
        "study": "study: the folder of a study, not of a run",
    }.items():
        code, _, err = fuels("report", str(folder))
        assert code == 1 and reason in err and err.count("\n") == 1


def test_what_follows_from_the_weights(run: RunFiles) -> None:
    scores = {"FUELS": {"mse": 0.9}, "FUELS model alone": {"mse": 2.0}}
    mixture = {"best_expert": "drift", "experts": {"drift": {"mse": 1.0}}}
    given = replace(run, summary={**run.summary, "scores": scores, "mixture": mixture})
    said = plain(consequences(given, {PERSONAL: 0.3, SHARED: 0.1, SIMPLE: 0.6}))
    assert "carry 30 % of the weight: more training or better settings" in said
    assert "the MSE would be 2.000 instead of 0.9000" in said
    assert "carry 10 %: most of the accuracy comes from each client's own data" in said
    assert "Simple rules carry 60 %" in said and "MSE is 10.0 % lower" in said
    said = plain(consequences(given, {PERSONAL: 0.1, SHARED: 0.9}))
    assert "would change the forecasts little" in said and "depend on each other" in said
    assert "Simple rules" not in said


# -- parts -------------------------------------------------------------------------------------


def test_elements_escape_all_that_is_not_markup() -> None:
    assert el("p", "<b>", Html("<b>"), class_='"') == '<p class="&quot;">&lt;b&gt;<b></p>'
    assert el("input", type="search", hidden=True, name=None) == '<input type="search" hidden>'


@pytest.mark.parametrize("low", [-3.7, 0.0, 0.2, 1e6])
@pytest.mark.parametrize("span", [0.0, 1e-5, 0.4, 7, 99, 3e6])
def test_ticks_are_round_and_cover_the_values(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 3 <= len(found) <= 8 and found[0] <= low + 1e-9 and found[-1] >= low + span - 1e-9
    assert np.ptp(np.diff(found)) < 1e-6 * max(np.diff(found))


def test_labels_of_axes_are_short() -> None:
    values = (0.0, 0.05, 12.5, 1200.0, 3.5e6, 2e10, 1e-7)
    assert [compact(v) for v in values] == ["0", "0.05", "12.5", "1,200", "3.5 M", "20 G", "1e-07"]


def test_lines_break_where_a_value_is_missing() -> None:
    chart = Chart(360, 100)
    chart.line([(0.0, 0.0), None, (0.5, 0.5), (1.0, 1.0)], "truth")
    [path] = chart.parts
    assert path.count("M") == 2 and path.count("L") == 1 and "h0" in path and "nan" not in path


def test_bars_with_whiskers_stay_inside_the_drawing() -> None:
    drawn = Figures().bars(
        [("a", 1.0, "1", "bar"), ("b", None, "–", "bar")], "t", spread=[1.0, None]
    )
    ends = [float(x) for x in re.findall(r'x2="([\d.]+)"', drawn)]
    assert len(ends) == 2 and ends[0] <= 820 and ends[1] <= 360


def test_a_sortable_table_keeps_missing_values_apart() -> None:
    found = sortable(
        Table.of({Column("c"): ["x", "y"], Column("v"): [None, 2.0]}, "caption"),
        "t", "client", [1, 0], "v",
    )  # fmt: skip
    assert found.index(">y<") < found.index(">x<")
    assert 'data-v="2"' in found and found.count("data-v") == 1
    assert found.count('aria-sort="descending"') == 1


def test_how_far_the_report_looks_ahead() -> None:
    one, three = small(), small(windows={"horizon": 3})
    assert steps_ahead(one, 100) == [1, 3, 6, 9, 12, 15, 18, 21, 24]
    assert steps_ahead(three, 100) == [1, 2, 3, 6, 9, 12, 15, 18, 21, 24]
    assert steps_ahead(three, 600) == [1, 2, 3, 6, 12, 18, 24]
    assert steps_ahead(one, 6000) == [1, 24]
    assert steps_ahead(small(windows={"period": 7}), 10) == [1, 2, 3, 4, 5, 6, 7]


def test_forecasts_ahead_are_those_of_fuels_forecast(reported: Path, run: RunFiles) -> None:
    """Only some of the steps, but the same values; they are drawn where they belong."""
    saved = SavedRun.load(reported)
    panel = make_panel(clients=12)
    panel = replace(panel, ids=AS_READ, timezone="Europe/Rome").sorted()
    assert saved.ensemble is not None and run.ahead is not None and run.forecasts is not None
    made = forecast_ensemble(saved.ensemble, panel, 3)
    np.testing.assert_allclose(run.ahead.forecast, made.values[:, [0, 2]], rtol=1e-9)
    assert made.lower is not None
    np.testing.assert_allclose(run.ahead.lower, made.lower[:, :, [0, 2]], rtol=1e-9)
    end = run.forecasts.times[-1]
    assert [(time - end) / timedelta(hours=1) for time in run.ahead.times] == [
        2,
        4,
    ]  # a value follows
    chart = Chart(360, 200)
    draw_ahead(chart, run.forecasts, run.ahead, 0, 24, "")
    [line] = [part for part in chart.parts if 'class="line method"' in part]
    x = [float(at) for at in re.findall(r"[ML]([\d.]+) ", line)]
    assert x == pytest.approx([chart.x(25), chart.x(27)], abs=0.1)  # 24 known values: 0 to 23


def test_spans_are_named_in_their_largest_unit() -> None:
    series = [(3600, 24), (3600, 1), (86400, 7), (300, 24), (900, 3)]
    found = [longest(timedelta(seconds=step), steps) for step, steps in series]
    assert found == ["24 hours", "1 hour", "7 days", "2 hours", "45 minutes"]


@pytest.mark.nightly
def test_a_report_of_100_clients_is_below_3_mb(tmp_path: Path, reported: Path) -> None:
    """Charts are for a few clients; a client more is a row of the table."""
    do_run(tmp_path, small("best", training={"rounds": 1}), make_panel(clients=100))
    large = write_run_report(tmp_path).stat().st_size
    assert (reported / "report.html").stat().st_size < large < 3e6


def test_a_small_report_leaves_room_for_100_clients(reported: Path) -> None:
    text = (reported / "report.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr>.*?</tr>", text[text.index('id="errors"') :], re.S)
    assert len(text) + 100 * max(map(len, rows)) < 3e6
