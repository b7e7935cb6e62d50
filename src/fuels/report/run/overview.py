"""Sections of a run's report: what it is, how accurate it is, and what federation adds."""

from __future__ import annotations

from datetime import datetime

from fuels.evaluation.outcome import SOLO, method_rows
from fuels.report.facts import BEATEN, Summary, facts, percentage
from fuels.report.page.elements import (
    Html,
    capital,
    definitions,
    el,
    joined,
    notice,
    paragraphs,
    table,
    tiles,
)
from fuels.report.page.shell import Section, section
from fuels.report.page.svg import Figures
from fuels.report.run.charts import day, draw_parts, longest
from fuels.report.run.files import RunFiles
from fuels.report.style import number
from fuels.report.tables import Cell, Table, columns, steps_ahead

PARTS = (
    ("train", "Training", "rest"),
    ("val", "Validation", "validation"),
    ("test", "Test", "method"),
)


def percent(share: float | None, digits: int = 3) -> str:
    return "–" if share is None else f"{number(100 * share, digits)} %"


def error_of(run: RunFiles, name: str) -> float | None:
    """Mean absolute error of a forecast in the data's unit."""
    means = run.summary["scores"].get(name)
    return None if means is None else means["mae_unit"]


# -- what it is --------------------------------------------------------------------------------


def about(run: RunFiles, figures: Figures) -> Section:
    data = run.summary["data"]
    known, notices = facts(run.summary), []
    if data["synthetic"]:
        text = "These series are generated; the errors say nothing about a real network."
        notices.append(notice("Synthetic data.", text))
    if BEATEN in known:
        text = f"{known[BEATEN]}. Where a simple reference is better, use the reference."
        notices.append(notice("Caution.", text))
    if "No errors" in known:
        notices.append(notice("", f"Accuracy is not known: {known['No errors']}."))
    lead = el("p", " ".join(two_sentences(run)), class_="lead")
    return section("summary", "Summary", "", lead, *notices, key_figures(run), dates(run, figures))


def two_sentences(run: RunFiles) -> list[str]:
    """The run for a reader who has never heard of it."""
    summary, data = run.summary, run.summary["data"]
    horizon = summary["settings"]["windows"].get("horizon", 1)
    step = None if run.forecasts is None else longest(run.forecasts.step, horizon)
    ahead = "" if step is None else f", {step} ahead" if horizon == 1 else f", up to {step} ahead"
    what = "value" if horizon == 1 else f"{horizon} values"
    clients = data["clients"]
    whom = "the client" if clients == 1 else f"each of the {number(clients)} clients"
    said = [
        f"This run trained a personal forecaster for {whom} of {data['name']}: it forecasts the"
        f" next {what} of the series{ahead}."
    ]
    if summary["scores"]:
        mae, share = error_of(run, run.title), summary.get("wape", {}).get(run.title)
        of = "" if share is None else f" ({percent(share)} of the values)"
        text = (
            f"On the test days, which training never saw, the forecasts were off by"
            f" {run.measured(mae)} on average{of}"
        )
        if (best := run.best_reference) is not None:
            theirs = error_of(run, best)
            text += f"; the best simple reference, {best}, was off by {run.measured(theirs)}"
        said.append(f"{text}.")
    return said


def key_figures(run: RunFiles) -> Html:
    """The few numbers that matter most."""
    summary, title = run.summary, run.title
    found: list[tuple[str, str, str]] = []
    if summary["scores"]:
        share = summary.get("wape", {}).get(title)
        more = "" if share is None else f"{percent(share)} of the values"
        found.append(("Mean error", run.measured(error_of(run, title)), more))
    if (best := run.best_reference) is not None:
        own, theirs = (summary["scores"][name]["mse"] for name in (title, best))
        better = summary["share_better_than_best_reference"]
        gain = change(own / theirs - 1) if theirs else "–"
        more = f"{best}; better for {100 * better:.0f} % of the clients"
        found.append(("Squared error against the best reference", gain, more))
    if (mixture := summary.get("mixture")) is not None and mixture["intervals"]:
        level, inside = list(mixture["intervals"].items())[-1]
        covered = f"{100 * inside['coverage']:.1f} %"
        found.append((f"Values inside the {level} % intervals", covered, f"{level} % intended"))
    if "mse_change" in (sharing := summary.get("sharing") or {}):
        other = sharing["compared_with"]
        found.append(("Squared error against no sharing", change(sharing["mse_change"]), other))
    return tiles(found)


def change(share: float) -> str:
    return f"{'−' if share < 0 else '+'}{abs(100 * share):.1f} %"


def dates(run: RunFiles, figures: Figures) -> Html | None:
    """When training, validation and test were."""
    parts = run.summary["data"].get("parts")
    if not parts:
        return None
    shown = []
    for name, title, kind in PARTS:
        if name in parts:
            first, last = (datetime.fromisoformat(text) for text in parts[name])
            length = (last - first).total_seconds() + 1
            shown.append((title, length, f"{day(first, True)} to {day(last, True)}", kind))
    mixed = bool(run.summary["settings"]["mixture"]["on"])
    what = {
        "train": f"the models{' and experts' * mixed} learn from these values",
        "val": validation_use(run.summary),
        "test": "new values; the errors of the forecasts are from here",
    }
    return joined(
        [
            figures.figure(
                lambda chart: draw_parts(chart, shown),
                "Training, validation and test",
                height=64,
                narrow_height=34 + 22 * len(shown),
                description="; ".join(f"{name}: {text}" for name, _, text, _ in shown),
            ),
            definitions(
                (title, f"{parts[name][0]} to {parts[name][1]}: {what[name]}")
                for name, title, _ in PARTS
                if name in parts
            ),
        ]
    )


def validation_use(summary: Summary) -> str:
    """Whether the validation part decided which models were kept, and if not, why."""
    last = summary["kept_last_because"]
    if summary["kept_clients"]["best"]:
        return "decides which round's models are kept"
    return f"measures every round; the last models were kept, {last}" if last else "not used"


# -- accuracy ----------------------------------------------------------------------------------


def accuracy(run: RunFiles, figures: Figures) -> Section | None:
    summary, title = run.summary, run.title
    if not summary["scores"]:
        return None
    own = method_rows(title)
    rows: list[tuple[str, float | None, str, str]] = []
    for name in summary["scores"]:
        mae = error_of(run, name)
        kind = "method" if name == title else "rival" if name == run.best_reference else "rest"
        rows.append((name, mae, number(mae, 3), kind))
    keys = [("box method", "the forecasts of this run")]
    if run.best_reference is not None:
        keys.append(("box rival", "the best simple reference (lowest MSE)"))
    keys.append(("box rest", "parts of the forecast, and other references"))
    known = facts(summary)
    explained = {
        own[1]: f"{own[1]}: the trained models without the experts.",
        own[2]: f"{own[2]}: what a client can do with its own data only.",
    }
    ahead = steps_ahead(summary)
    unit = f", {run.unit}" if run.unit else ""
    caption = " ".join(text for name, text in explained.items() if name in summary["scores"])
    bars = figures.bars(
        sorted(rows, key=lambda row: row[1] or 0.0),
        f"Mean absolute error{unit}, one step ahead (shorter is better)",
        keys=keys,
        caption=caption or None,
    )
    return section(
        "accuracy",
        "Accuracy against simple references",
        "Accuracy",
        paragraphs(known.get("Comparison") and f"{known['Comparison']}."),
        bars,
        table(errors_table(run)),
        None if ahead is None else table(ahead),
    )


def errors_table(run: RunFiles) -> Table:
    """Errors of the method and of the references, one step ahead."""
    summary = run.summary
    wape, unit = summary.get("wape", {}), run.unit or "data's unit"
    rows: list[list[Cell]] = []
    for name, means in summary["scores"].items():
        of = percentage(wape.get(name))
        rows.append([name, means["mae_unit"], of, means["mse_unit"], means["mse"], means["mae"]])
    return Table(
        columns(
            f"forecast | MAE ({unit}) ↓ | WAPE (% of the values) ↓ | MSE ({unit}²) ↓"
            " | MSE (z-scored) ↓ | MAE (z-scored) ↓"
        ),
        rows,
        "One-step errors on the test part, means over the clients. z-scored: in standard deviations"
        " of each client's training part.",
    )


# -- federation --------------------------------------------------------------------------------


def federation(run: RunFiles, figures: Figures) -> Section:
    """What federation adds, as far as this run can say."""
    summary, known = run.summary, facts(run.summary)
    labels = {"Federation": "", "Shared sums": "for the shared sums, ", "Sharing": ""}
    texts = [f"{capital(labels[label] + known[label])}." for label in labels if label in known]
    rows = [(name, summary["scores"].get(name)) for name in (run.title, method_rows(run.title)[2])]
    bars = None
    if all(means is not None for _, means in rows):
        mse = [(name, means["mse"]) for name, means in rows if means is not None]
        kinds = zip(mse, ("method", "rest"), strict=True)
        bars = figures.bars(
            [(name, value, number(value), kind) for (name, value), kind in kinds],
            "Mean squared error with and without sharing (z-scored, shorter is better)",
        )
    if "Federation" not in known:
        if run.title == SOLO:
            texts.append("Every client was trained alone, so there is nothing to compare.")
        else:
            texts.append(
                "This run has no row in which nothing is shared, so it does not say what federation"
                " adds. To find out, train each client alone on the same data: fuels run --method"
                " solo, or fuels compare --methods solo," + str(summary["method"]) + "."
            )
    title = "What federation adds"
    return section("federation", title, "Federation", paragraphs(*texts), bars)
