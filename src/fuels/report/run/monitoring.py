"""Section of a run's report: its past forecasts compared with what happened (`fuels monitor`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuels.report.facts import unit_name
from fuels.report.monitor import sentences, tables
from fuels.report.page.elements import Html, bullets, capital, paragraphs, sortable
from fuels.report.page.elements import table as table_of
from fuels.report.page.shell import Section, section
from fuels.report.page.svg import Figures
from fuels.report.run.charts import draw_days
from fuels.report.run.files import RunFiles
from fuels.report.style import number
from fuels.report.tables import Column, Table

TITLES = {
    "errors": "Errors by day, as a multiple of those of the test part",
    "values": "Change of the values within a week, by day, as a multiple of the usual change",
}


def monitoring(run: RunFiles, figures: Figures) -> Section | None:
    """Errors and coverage since the run, drift, and whether to train again."""
    found = run.monitored
    if found is None:
        return None
    return section(
        "monitoring",
        "How the forecasts did since",
        "Since the run",
        paragraphs(f"{capital(found['retrain']['text'])}."),
        bullets(text for text in sentences(found) if not text.startswith("Advice")),
        *(table_of(one) for one in tables(found)),
        *(_days(found, figures, kind) for kind in TITLES),
        _clients(found),
    )


def _days(found: Any, figures: Figures, kind: str) -> Html | None:
    """What is watched, by day."""
    days = [day for day in found["by_day"] if day.get(kind) is not None]
    if len(days) < 2:
        return None
    values = np.array([day[kind] for day in days])
    labels = [day["from"][5:10] for day in days]
    titles = [f"{day['from']}: {number(day[kind], 3)}" for day in days]
    worst = int(np.argmax(values))
    said = f"Largest: {titles[worst]}. 1 is usual."
    return figures.figure(
        lambda drawn: draw_days(drawn, labels, values, titles, {worst}, "times the usual"),
        TITLES[kind],
        height=200,
        description=said,
        caption=said,
    )


def _clients(found: Any) -> Html:
    """Errors of each client over the last week, the most unusual first."""
    rows = found["by_client"]
    names = {"errors": ("errors", "× test part"), "values": ("change of values", "× usual")}
    columns = {
        Column("client"): [row["client"] for row in rows],
        **{
            Column(name, times): [row[f"{kind}_last_period"] for row in rows]
            for kind, (name, times) in names.items()
            if f"{kind}_last_period" in rows[0]
        },
        Column("MAE, last week", unit_name(found)): [row["mae"] for row in rows],
    }
    unusual = list(columns)[1]
    known = [-math.inf if value is None else float(value) for value in columns[unusual]]
    order = sorted(range(len(rows)), key=known.__getitem__, reverse=True)
    caption = "Clients since the run: the last period, and the last week"
    return sortable(Table.of(columns, caption), "since", "client", order, unusual.name)
