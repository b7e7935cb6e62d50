"""Section of a run's report: its past forecasts compared with what happened (`fuels monitor`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuels.report.monitor import sentences, tables
from fuels.report.page.elements import (
    Html,
    SortColumn,
    bullets,
    joined,
    paragraphs,
    sortable,
)
from fuels.report.page.elements import table as table_of
from fuels.report.page.shell import Section
from fuels.report.page.svg import Figures
from fuels.report.run.charts import draw_days
from fuels.report.run.files import RunFiles
from fuels.report.style import number

TITLES = {
    "errors": "Errors by day, as a multiple of those of the test part",
    "values": "Change of the values within a week, by day, as a multiple of the usual change",
}


def monitoring(run: RunFiles, figures: Figures) -> Section | None:
    """Errors and coverage since the run, drift, and whether to train again."""
    found = run.monitored
    if found is None:
        return None
    advice = found["retrain"]["text"]
    content = joined(
        [
            paragraphs(f"{advice[0].upper()}{advice[1:]}."),
            bullets(text for text in sentences(found) if not text.startswith("Advice")),
            *(table_of(one) for one in tables(found)),
            *(chart for kind in TITLES if (chart := _days(found, figures, kind)) is not None),
            _clients(found),
        ]
    )
    return Section("monitoring", "How the forecasts did since", content, "Since the run")


def _days(found: Any, figures: Figures, kind: str) -> Html | None:
    """What is watched, by day."""
    days = [day for day in found["by_day"] if day.get(kind) is not None]
    if len(days) < 2:
        return None
    values = np.array([day[kind] for day in days])
    titles = [f"{day['from']}: {number(value, 3)}" for day, value in zip(days, values, strict=True)]
    worst = titles[int(np.argmax(values))]
    return figures.figure(
        lambda drawn: draw_days(
            drawn,
            [day["from"][5:10] for day in days],
            values,
            titles,
            {int(np.argmax(values))},
            "times the usual",
        ),
        TITLES[kind],
        height=200,
        description=f"Largest: {worst}. 1 is usual.",
        caption=f"Largest: {worst}. 1 is usual.",
    )


def _clients(found: Any) -> Html:
    """Errors of each client over the last week, the most unusual first."""
    rows = found["by_client"]
    kinds = [kind for kind in TITLES if f"{kind}_last_period" in rows[0]]
    names = {"errors": ("errors", "× test part"), "values": ("change of values", "× usual")}
    unit = "" if found["unit"] == "value" else found["unit"]
    columns = [
        SortColumn("client", [row["client"] for row in rows], [row["client"] for row in rows]),
        *(
            SortColumn.of(name, [row[f"{kind}_last_period"] for row in rows], times)
            for kind, (name, times) in names.items()
            if kind in kinds
        ),
        SortColumn.of("MAE, last week", [row["mae"] for row in rows], unit),
    ]
    by = columns[1].name

    def rank(place: int) -> float:
        value = columns[1].values[place]
        return -math.inf if value is None else float(value)

    order = sorted(range(len(rows)), key=rank, reverse=True)
    caption = "Clients since the run: the last period, and the last week"
    return sortable(columns, caption, "since", "client", order, by)
