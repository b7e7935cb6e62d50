"""The pictures of a run."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.outcome import method_rows
from fuels.report import plots
from fuels.report.expert_plots import draw_experts
from fuels.report.families import PERSONAL, REGRESSION, SHARED, SIMPLE, by_family, shares
from fuels.report.style import legend_columns, looks, midnights, origin
from helpers.outcomes import ERRORS, dataset, mixed, outcome


def test_report_modules_do_not_load_matplotlib_or_torch() -> None:
    code = (
        "import sys, fuels.report.tables, fuels.report.display, fuels.report.plots;"
        "sys.exit(bool({'matplotlib', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_telling_clients_are_best_median_worst_and_largest_gain() -> None:
    run = outcome(
        dataset(5),
        {"FUELS": [0.5, 0.1, 0.4, 0.2, 0.3], "ridge": [0.5, 0.1, 0.4, 0.9, 0.3], "x": [9.0] * 5},
    )
    assert plots.telling_clients(run) == {1: "best", 4: "median", 0: "worst", 3: "largest gain"}
    two = outcome(dataset(2), {"FUELS": [0.1, 0.2], "ridge": [0.1, 0.1]})
    assert plots.telling_clients(two) == {0: "best, median", 1: "worst"}
    one = outcome(dataset(1), {"FUELS": [0.1]})
    assert plots.telling_clients(one) == {0: "the only client with a score"}


def test_days_shown_are_the_first_without_gaps() -> None:
    observed = np.ones(11 * 24, dtype=np.bool_)
    assert plots.shown_steps(3600, 24, observed) == (0, 120)
    observed[[3, 30]] = False
    assert plots.shown_steps(3600, 24, observed) == (48, 168)
    assert plots.shown_steps(3600, 24, observed[:10]) == (0, 10)
    assert plots.shown_steps(300, 288, np.ones(3000, dtype=np.bool_)) == (0, 576)
    assert plots.shown_steps(86400, 7, np.ones(60, dtype=np.bool_)) == (0, 48)


def test_error_by_phase_counts_clients_alike_and_skips_missing_targets() -> None:
    data = dataset(2)  # period 4, two periods of test
    first = data.split.val
    data.target[:, first + 1] = data.target[:, first + 5] = False  # phase 1 has no target
    data.target[1, first + 2] = False
    run = outcome(data, {"FUELS": [1.0, 3.0]})
    run.forecasts["FUELS"][0, 6] += 1.0  # client 0, phase 2: errors 1 and 2, client 1: error 3
    found = plots.error_by_phase(run, "FUELS")
    np.testing.assert_allclose(found, [5.0, np.nan, (2.5 + 9.0) / 2, 5.0])
    # client 0 has 1, 1, 1, 4 in the last two phases, client 1 has 9, 9, 9
    np.testing.assert_allclose(plots.error_by_phase(run, "FUELS", 2), [5.0, (1.75 + 9.0) / 2])


def test_the_best_client_is_one_whose_values_change() -> None:
    data = dataset(4)
    first = data.split.val
    data.series[0, first:] = 1.5  # nothing happens in its test part
    data.series[1, first:] = 0.5
    data.series[1, first] = 9.0  # and here only where there is no target
    data.target[1, first] = False
    assert plots.constant_clients(data).tolist() == [True, True, False, False]
    run = outcome(data, {"FUELS": [0.1, 0.2, 0.3, 0.4]})
    assert plots.telling_clients(run) == {
        2: "best whose values change",
        1: "median",
        3: "worst",
    }
    data.series[:, first:] = 1.5
    nothing = outcome(data, {"FUELS": [0.1, 0.2, 0.3, 0.4]})
    assert plots.telling_clients(nothing)[0] == "best"


def test_each_reference_keeps_its_grey() -> None:
    names = ["FUELS", "a", "b", "c"]

    def of(rival: str | None) -> dict[str, Any]:
        return looks(names, *method_rows("FUELS"), rival)

    assert of("a")["b"] == of("c")["b"]
    assert of("a")["a"]["color"] == of("c")["c"]["color"]
    assert len({str(look) for look in of(None).values()}) == 4


@pytest.mark.parametrize("rival", ["last value", "ridge + time of period"])
def test_no_two_lines_of_a_run_look_alike(rival: str) -> None:
    """The method, its model alone and every reference there is differ in colour or in dashes."""
    references = [
        "last value",
        "one period ago",
        "one week ago",
        "ridge",
        "ridge + time of period",
    ]
    names = [*method_rows("FUELS"), *references]
    found = looks(names, *method_rows("FUELS"), rival)
    told = {(look["color"], str(look.get("linestyle", "solid"))) for look in found.values()}
    assert list(found) == names and len(told) == len(names)


def test_dates_stand_equally_far_apart_across_the_turn_of_a_month() -> None:
    zone = ZoneInfo("Europe/Rome")
    first, last = np.datetime64("2013-11-21T23:00"), np.datetime64("2013-12-12T22:00")
    found = midnights(first, last, zone)
    days = [(moment.month, moment.day) for moment in found]
    assert days == [(11, 22), (11, 25), (11, 28), (12, 1), (12, 4), (12, 7), (12, 10)]
    assert all(moment.hour == 0 and moment.tzinfo is zone for moment in found)
    later = midnights(first + np.timedelta64(1, "h"), last, zone)
    assert later[0].day == 23  # the first midnight within
    for length in range(2, 400):
        span = midnights(first, first + np.timedelta64(length, "D"), zone)
        assert 2 <= len(span) <= 8


def test_the_picture_of_the_experts_names_its_axes() -> None:
    run = outcome(dataset(period=24, periods=(4, 1, 12), step=3600), ERRORS)
    picture = draw_experts(mixed(run))
    assert {axis.get_ylabel() for axis in picture.axes} == {"weight"}
    assert picture.axes[-1].get_xlabel() == "time"
    assert any("running means over 24 steps" in text.get_text() for text in picture.texts)
    ticks = picture.axes[0].get_xticks()
    assert np.ptp(np.diff(ticks)) < 1e-9 and len(ticks) == 6  # 12 days, one in two


def test_a_long_legend_takes_several_rows() -> None:
    assert legend_columns(["FUELS", "ridge"]) == 2
    assert 1 <= legend_columns(["a method with a long name"] * 10) < 5


CASES: dict[str, tuple[Dataset, dict[str, list[float]]]] = {
    "many": (dataset(9, 24, (4, 1, 6), 3600, timezone="Europe/Rome"), {"ridge": [0.2] * 9}),
    "one client, no validation": (dataset(1, 24, (4, 0, 1), 3600), {"ridge": [0.2]}),
    "five minutes": (dataset(2, 288, (4, 0, 1), 300), {"ridge": [0.1, 0.2]}),
    "daily, no references": (dataset(2, 7, (4, 1, 2), 86400), {}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("error")
def test_every_kind_of_run_has_its_pictures(name: str, tmp_path: Path) -> None:
    data, references = CASES[name]
    data = replace(data, target=data.target.copy(), window=data.window.copy())
    if len(data.ids) > 1:
        data.target[0, data.split.val : data.split.val + 2] = False
        data.window[0, data.split.val] = False
        data.target[1, data.split.val :] = False  # a client without a score
    run = outcome(data, {"FUELS": [0.1] * len(data.ids), **references})
    written = plots.write_plots(run, tmp_path / "plots")
    names = ["forecasts.png", "cdf.png", "hours.png", "learning.png"]
    assert [path.name for path in written] == names
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert b"Software" not in content
        assert b"tIME" not in content


def test_pictures_of_equal_runs_are_equal_in_every_thread(tmp_path: Path) -> None:
    run = outcome(dataset(), ERRORS)
    here, there = tmp_path / "here", tmp_path / "there"
    thread = threading.Thread(target=plots.write_plots, args=(run, there))
    thread.start()
    written = plots.write_plots(run, here)
    thread.join()
    assert len(written) == 4
    for path in written:
        assert (there / path.name).read_bytes() == path.read_bytes()


@pytest.mark.filterwarnings("error")
def test_errors_of_zero_can_be_drawn() -> None:
    run = outcome(dataset(), {"FUELS": [0.0] * 3, "ridge": [0.0, 0.1, 3.0]})
    for draw in (plots.draw_cdf, plots.draw_hours):
        figure = draw(run)
        figure.canvas.draw()
        assert all(np.isfinite(axis.dataLim.get_points()).all() for axis in figure.axes)


def test_pictures_name_their_data() -> None:
    def footer(**panel: Any) -> str:
        return origin(dataset(**panel))

    assert footer(name="synthetic-net", synthetic=True) == (
        "Data: synthetic-net · synthetic data, not a real network · 3 clients"
    )
    assert "Telecom Italia Open Big Data Challenge, ODbL 1.0" in footer(name="Milan_net")
    assert footer(name="mine") == "Data: mine · 3 clients"
    texts = [text.get_text() for text in plots.draw_cdf(outcome(dataset(), ERRORS)).texts]
    assert "Data: panel · 3 clients" in texts


def test_learning_is_shown_by_round() -> None:
    """In a panel for errors, and one for further losses if there are any."""
    run = outcome(dataset(), ERRORS)
    picture = plots.draw_learning(run)
    assert [axis.get_xlabel() for axis in picture.axes] == ["", "round"]
    for line in run.history:
        line.update(loss_intra=None, loss_inter=None)
    assert len(plots.draw_learning(run).axes) == 1


def test_forecasts_show_intervals_in_the_unit_of_the_data() -> None:
    run = mixed(outcome(dataset(unit="kWh"), ERRORS))  # bands of 1 on the z-scored scale, std 2
    picture = plots.draw_forecasts(run)
    axis = picture.axes[-1]
    assert {each.get_ylabel() for each in picture.axes} == {"kWh"}
    assert [band.get_label() for band in axis.collections] == ["95 % interval", "80 % interval"]
    wide, narrow = (band.get_facecolor()[0] for band in axis.collections)
    assert (narrow[:3] < wide[:3]).all() and wide[3] == narrow[3] == 1.0  # as in the legend
    found = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (found.min(), found.max()) == (8.0, 12.0)  # 10 - 2 to 10 + 2


def test_large_values_are_labelled_within_the_figure() -> None:
    data = dataset()
    data = replace(
        data, std=data.std * 1e9, panel=replace(data.panel, values=data.panel.values * 1e9)
    )
    picture = plots.draw_forecasts(outcome(data, ERRORS))
    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    for axis in picture.axes:
        assert axis.yaxis.get_tightbbox(canvas.get_renderer()).x0 >= 0


def test_all_weights_are_shown_by_family() -> None:
    names = (
        "FUELS model",
        "pooled ridge, day lags",
        "ridge, calendar, live mean",
        "ridge",
        "drift",
    )
    weights = np.array([[0.1, 0.2, 0.3, 0.15, 0.25]])
    found = by_family(weights, names, "FUELS model")
    np.testing.assert_allclose(list(found.values()), [[0.1], [0.5], [0.15], [0.25]])
    assert list(found) == [PERSONAL, SHARED, REGRESSION, SIMPLE]
    assert list(shares({"ridge": 1.0, "drift": 3.0}, "x").values()) == [0.25, 0.75]


def test_a_run_without_scores_shows_how_it_learned(tmp_path: Path) -> None:
    run = outcome(dataset(), {}, scores={}, forecasts={})
    assert [path.name for path in plots.write_plots(run, tmp_path)] == ["learning.png"]


def test_pictures_that_cannot_be_written_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "plots").write_text("a file")
    with pytest.raises(FuelsError, match=r"plots: cannot be created"):
        plots.write_plots(outcome(dataset(), ERRORS), tmp_path / "plots")
    (tmp_path / "new" / "forecasts.png").mkdir(parents=True)
    with pytest.raises(FuelsError, match=r"forecasts\.png: the plot cannot be written"):
        plots.write_plots(outcome(dataset(), ERRORS), tmp_path / "new")
