"""report.html of a run, from its folder: equal folders give equal pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fuels.data.files import write_text
from fuels.report.facts import count_of
from fuels.report.page.shell import NAME, Section, page
from fuels.report.page.svg import Figures
from fuels.report.run import background, details, mixture, monitoring, overview
from fuels.report.run.files import RunFiles, read_run
from fuels.report.style import attribution

Build = Callable[[RunFiles, Figures], Section | None]

# In their order on the page. A section without anything to show is left out.
SECTIONS: tuple[Build, ...] = (
    overview.about,
    overview.accuracy,
    monitoring.monitoring,
    overview.federation,
    details.forecasts,
    details.failures,
    details.ahead,
    mixture.intervals,
    details.clients,
    mixture.experts,
    background.cost,
    background.privacy,
    background.notes,
    background.settings,
)


def run_page(run: RunFiles, sections: Sequence[Build] = SECTIONS) -> str:
    figures, data = Figures(), run.summary["data"]
    made = [section for build in sections if (section := build(run, figures)) is not None]
    rounds = count_of(run.summary["rounds"], "round")
    subtitle = f"{count_of(data['clients'], 'client')}, {rounds} of training"
    owed = attribution(data["name"])
    foot = f"Made by fuels {run.summary['version']} from the run folder."
    return page(
        f"{run.title} on {data['name']}",
        f"{subtitle}{', synthetic data' if data['synthetic'] else ''}",
        made,
        f"{foot} Data: {owed}." if owed else foot,
    )


def write_run_report(
    folder: Path,
    summary: Mapping[str, Any] | None = None,
    monitored: Mapping[str, Any] | None = None,
) -> Path:
    """Write report.html into a run folder; `summary` is given if it is not written yet."""
    return write_text(folder / NAME, run_page(read_run(folder, summary, monitored)))
