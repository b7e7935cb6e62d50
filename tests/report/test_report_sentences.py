"""Sentences of report.html that depend on the settings of the run, and on its version."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from fuels.report.run.files import RunFiles, read_run
from fuels.report.run.report import run_page
from helpers.commands import Fuels
from report.test_report import plain


@pytest.fixture(scope="module")
def run(reported: Path) -> RunFiles:
    return read_run(reported)


def text_of(run: RunFiles) -> str:
    return " ".join(plain(run_page(run)).split())


def test_a_run_of_version_0_1_0_has_a_report(fuels: Fuels, tmp_path: Path) -> None:
    saved = Path(__file__).parents[1] / "data_files" / "run-0.1.0"
    folder = shutil.copytree(saved, tmp_path / "old")
    code, _, err = fuels("report", str(folder))
    assert code == 0 and "Traceback" not in err
    seen = " ".join(plain((folder / "report.html").read_text()).split())
    assert "for each of the 2 clients of data" in seen and "for 100 % of the clients." in seen
    assert "Model kept the best one on the validation part" in seen


@pytest.mark.parametrize(
    ("kept", "why", "said"),
    [
        ({"best": 4, "last": 1}, "because of gaps", "decides which round's models are kept"),
        ({"best": 0, "last": 5}, "as requested", "the last models were kept, as requested"),
    ],
)
def test_the_page_says_what_the_validation_part_was_for(
    run: RunFiles, kept: dict[str, int], why: str, said: str
) -> None:
    summary = {
        **run.summary,
        "kept_clients": {**kept, "untrained": 0},
        "kept_last_because": why,
    }
    page = text_of(replace(run, summary=summary))
    assert said in page and page.count("decides which") == (kept["best"] > 0)
    settings = {**run.summary["settings"], "mixture": {"on": False}}
    assert "the models and experts learn from these values" in page
    page = text_of(replace(run, summary={**summary, "settings": settings}))
    assert "the models learn from these values" in page


def test_how_far_it_looks_ahead_is_said_only_if_the_length_of_a_step_is_known(
    run: RunFiles,
) -> None:
    """Not all steps ahead are forecast, so their times alone do not show it."""
    ahead = run.ahead
    assert ahead is not None and len(ahead.times) >= 2
    some = [0, 5]
    few = replace(
        ahead,
        times=tuple(ahead.times[0] + i * timedelta(hours=1) for i in some),
        forecast=ahead.forecast[:, : len(some)],
        actual=ahead.actual[:, : len(some)],
        lower=ahead.lower[:, :, : len(some)],
        upper=ahead.upper[:, :, : len(some)],
    )
    known = text_of(replace(run, ahead=few))
    assert "Forecasts for the 6 hours after the end" in known and "2 of these 6 steps" in known
    unknown = text_of(replace(run, ahead=few, forecasts=None))
    assert "Forecasts for the time after the end" in unknown and "of these 6 steps" not in unknown
