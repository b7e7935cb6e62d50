"""A run folder and its report, for the tests of the page and those in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuels.cli.report import add_ahead
from fuels.report.run.report import write_run_report
from fuels.storage.run_folder import RunFolder
from helpers.panels import make_panel
from helpers.runs import do_run, small

NASTY = '<script>alert("1")</script>'  # a client's name
AS_READ = (NASTY, "a&b", *(f"cell {i}" for i in range(3, 13)))


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run of preset best with twelve clients and its report."""
    folder = tmp_path_factory.mktemp("report") / "run"
    panel = make_panel(clients=12)
    panel = replace(panel, ids=AS_READ, unit="kWh <b>", timezone="Europe/Rome")
    do_run(folder, small("best", training={"rounds": 2}, windows={"horizon": 1}), panel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuels.runs.ahead.FARTHEST", 3)
        patch.setattr("fuels.runs.ahead.POINTS", 1)
        patch.setattr("fuels.forecasting.saved_run.load_panel", lambda settings: panel)
        add_ahead(RunFolder(folder))
    write_run_report(folder)
    return folder
