"""Sections of a run's report about its mixture: reliability of the intervals, trust in experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuels.report.facts import facts
from fuels.report.families import MEANING, PERSONAL, REGRESSION, SHARED, SIMPLE, family, shares
from fuels.report.page.elements import Html, bullets, capital, el, joined, paragraphs
from fuels.report.page.shell import Section, section
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
    texts = [f"{capital(sentence)}."]
    hours = 24.0
    if run.forecasts is not None:
        hours = run.period * run.forecasts.step.total_seconds() / 3600
    levels = [(lv, f["by_phase"]) for lv, f in mixture["intervals"].items() if f.get("by_phase")]
    curves = [(level, values, kinds[i % 3]) for i, (level, values) in enumerate(levels)]
    chart = None
    if curves:
        when = "hour of the day" if hours == 24 else "the time of the period"
        keys = [(kind, f"{level} % intervals") for level, _, kind in curves]
        chart = figures.figure(
            lambda drawn: draw_phases(drawn, curves, hours),
            f"Coverage by {when}",
            keys=[*keys, ("rest dash", "intended")],
            height=230,
            description=sentence,
        )
        texts += [text for level, values in levels if (text := uneven(level, values, hours))]
    if "Range" in known:
        texts.append(f"{capital(known['Range'])}.")
    title = "How reliable the intervals are"
    return section("intervals", title, "Intervals", paragraphs(*texts), chart)


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
    place = ("experts", "Which experts were trusted", "Experts")
    if not run.weights:
        return section(*place, paragraphs(*texts))
    weights = {name: float(np.nanmean(values)) for name, values in run.weights.items()}
    parts = shares(weights, model)
    kinds = {PERSONAL: "method", SHARED: "rival", REGRESSION: "validation", SIMPLE: "rest"}
    top = sorted(weights.items(), key=lambda item: -item[1])[:EXPERTS]
    keys = [(f"box {kinds[one]}", one) for one in parts]
    charts = [
        figures.bars(
            [(one, share, percent(share, 2), f"fill {kinds[one]}") for one, share in parts.items()],
            "Weight of each kind of expert, mean over clients and test part",
            caption=". ".join(f"{capital(one)}: {MEANING[one]}" for one in parts) + ".",
        ),
        figures.bars(
            [(n, w, percent(w, 2), f"fill {kinds[family(n, model)]}") for n, w in top],
            f"The {len(top)} experts with the largest weights, of {len(weights)}",
            keys=keys,
        ),
    ]
    return section(*place, paragraphs(*texts), *charts, consequences(run, parts))


def consequences(run: RunFiles, parts: dict[str, float]) -> Html:
    """What a reader can do about the weights."""
    found, summary = [], run.summary
    personal, shared = parts.get(PERSONAL, 0.0), parts.get(SHARED, 0.0)
    scores, title = summary["scores"], run.title
    alone = scores.get(f"{title} model alone")
    gain = ""
    if alone is not None:
        instead = f"{number(alone['mse'])} instead of {number(scores[title]['mse'])}"
        gain = f" Without the experts, the MSE would be {instead}."
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
