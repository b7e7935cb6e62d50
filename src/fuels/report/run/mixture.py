"""Sections of a run's report about its mixture: reliability of the intervals, trust in experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuels.report.facts import facts
from fuels.report.families import (
    MEANING,
    PERSONAL,
    REGRESSION,
    SHARED,
    SIMPLE,
    family,
    shares,
)
from fuels.report.page.elements import Html, bullets, el, joined, paragraphs
from fuels.report.page.shell import Section
from fuels.report.page.svg import Figures
from fuels.report.run.charts import draw_phases
from fuels.report.run.files import RunFiles
from fuels.report.run.overview import percent
from fuels.report.style import number

EXPERTS = 8  # in the chart of weights
UNEVEN = 0.1  # coverage this far from its level is pointed out


def intervals(run: RunFiles, figures: Figures) -> Section | None:
    """Coverage of the intervals, overall and by the time of the period."""
    mixture = run.summary.get("mixture")
    if mixture is None:
        return None
    known, kinds = facts(run.summary), ("method", "rival", "rest")
    sentence = known["Intervals"]
    texts = [f"{sentence[0].upper()}{sentence[1:]}."]
    hours = 24.0
    if run.forecasts is not None:
        hours = run.period * run.forecasts.step.total_seconds() / 3600
    by_phase = {
        level: found["by_phase"]
        for level, found in mixture["intervals"].items()
        if found.get("by_phase")
    }
    chart = None
    if by_phase:
        chart = figures.figure(
            lambda drawn: draw_phases(
                drawn,
                [(lv, values, kinds[i % 3]) for i, (lv, values) in enumerate(by_phase.items())],
                hours,
            ),
            "Coverage by hour of the day" if hours == 24 else "Coverage by the time of the period",
            keys=[
                *((kinds[i % 3], f"{level} % intervals") for i, level in enumerate(by_phase)),
                ("rest dash", "intended"),
            ],
            height=230,
            description=sentence,
        )
        texts += [
            text for level, values in by_phase.items() if (text := uneven(level, values, hours))
        ]
    if "Range" in known:
        texts.append(f"{known['Range'][0].upper()}{known['Range'][1:]}.")
    return Section(
        "intervals",
        "How reliable the intervals are",
        joined([paragraphs(*texts), chart]),
        "Intervals",
    )


def uneven(level: str, values: Sequence[float | None], hours: float) -> str | None:
    """A hint about the time of the period with the least coverage, if it is far from the level."""
    known = {i: value for i, value in enumerate(values) if value is not None}
    place = min(known, key=lambda i: known[i], default=None)
    if place is None or float(level) / 100 - known[place] < UNEVEN:
        return None
    at = hours * place / len(values)
    when = (
        f"at {int(at):02}:{round(at % 1 * 60):02}" if hours == 24 else f"{at:.4g} h into the period"
    )
    return (
        f"The {level} % intervals are too narrow {when}: only {100 * known[place]:.0f} % of the"
        " values were inside. Allow for more uncertainty at this time."
    )


# -- experts -----------------------------------------------------------------------------------


def experts(run: RunFiles, figures: Figures) -> Section | None:
    """Which experts the mixture trusted, and what follows."""
    mixture = run.summary.get("mixture")
    if mixture is None:
        return None
    known = facts(run.summary)
    texts = [f"{known['Experts']}."] if "Experts" in known else []
    model = f"{run.title} model"
    if not run.weights:
        return Section("experts", "Which experts were trusted", paragraphs(*texts), "Experts")
    weights = {name: float(np.nanmean(values)) for name, values in run.weights.items()}
    parts = shares(weights, model)
    kinds = {PERSONAL: "method", SHARED: "rival", REGRESSION: "validation", SIMPLE: "rest"}
    top = sorted(weights.items(), key=lambda item: -item[1])[:EXPERTS]
    keys = [(f"box {kinds[one]}", one) for one in parts]
    charts = [
        figures.bars(
            [(one, share, percent(share, 2), f"fill {kinds[one]}") for one, share in parts.items()],
            "Weight of each kind of expert, mean over clients and test part",
            caption=". ".join(f"{one[0].upper()}{one[1:]}: {MEANING[one]}" for one in parts) + ".",
        ),
        figures.bars(
            [(n, w, percent(w, 2), f"fill {kinds[family(n, model)]}") for n, w in top],
            f"The {len(top)} experts with the largest weights, of {len(weights)}",
            keys=keys,
        ),
    ]
    content = joined([paragraphs(*texts), *charts, consequences(run, parts)])
    return Section("experts", "Which experts were trusted", content, "Experts")


def consequences(run: RunFiles, parts: dict[str, float]) -> Html:
    """What a reader can do about the weights."""
    found, summary = [], run.summary
    personal, shared = parts.get(PERSONAL, 0.0), parts.get(SHARED, 0.0)
    scores, title = summary["scores"], run.title
    alone = scores.get(f"{title} model alone")
    gain = (
        ""
        if alone is None
        else (
            f" Without the experts, the MSE would be {number(alone['mse'])} instead of"
            f" {number(scores[title]['mse'])}."
        )
    )
    if personal >= 0.25:
        text = "more training or better settings of the models can still lower the error."
    else:
        text = "more training rounds would change the forecasts little."
    found.append(f"The personal models carry {percent(personal, 2)} of the weight: {text}{gain}")
    if SHARED in parts:
        text = (
            "clients depend on each other; one that leaves the federation loses these experts."
            if shared >= 0.25
            else "most of the accuracy comes from each client's own data."
        )
        found.append(f"Experts that use other clients' sums carry {percent(shared, 2)}: {text}")
    if (simple := parts.get(SIMPLE, 0.0)) >= 0.3:
        found.append(
            f"Simple rules carry {percent(simple, 2)}: the fitted experts were no better than the"
            " last values for much of the test. That is usual on unusual days, such as holidays;"
            " see the days with the largest errors."
        )
    best, experts = summary["mixture"]["best_expert"], summary["mixture"]["experts"]
    if title in scores and experts[best]["mse"]:
        gained = 1 - scores[title]["mse"] / experts[best]["mse"]
        verb = "pays" if gained > 0 else "does not pay"
        found.append(
            f"Mixing {verb}: the MSE is {abs(100 * gained):.1f} %"
            f" {'lower' if gained > 0 else 'higher'} than that of the best single expert, {best}."
        )
    return joined([el("h3", "What follows"), bullets(found)])
