"""Sections of a run's report: bytes and time, privacy, notes on the data, and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fuels.report.facts import BEATEN, count_of, facts
from fuels.report.page.elements import Html, bullets, definitions, el
from fuels.report.page.shell import Section, code, section
from fuels.report.page.svg import Figures
from fuels.report.privacy import revealed
from fuels.report.run.charts import draw_curves
from fuels.report.run.files import RunFiles
from fuels.report.style import number

# Labels of facts() that have sections of their own.
ELSEWHERE = (
    *("Error", "Comparison", BEATEN, "Experts", "Intervals", "Dates", "Sent", "No errors"),
    *("Federation", "Sharing", "Shared sums", "Synthetic data", "Results", "Model kept"),
    "Range",
)

# -- cost --------------------------------------------------------------------------------------


def size(amount: float) -> str:
    """An amount of data in readable units."""
    for limit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if amount >= limit:
            return f"{number(amount / limit, 3)} {name}"
    return f"{number(amount, 3)} bytes"


def seconds_text(value: float) -> str:
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    return f"{value / 60:.1f} min" if value >= 90 else f"{number(float(value), 3)} s"


def cost(run: RunFiles, figures: Figures) -> Section:
    """Training, bytes, time and memory."""
    summary = run.summary
    pairs: list[tuple[str, str]] = [("Rounds", number(summary["rounds"]))]
    if known := facts(summary).get("Model kept"):
        pairs.append(("Model kept", known))
    if parameters := summary.get("parameters_per_client"):
        text = f"{number(parameters)} parameters ({size(4 * parameters)})"
        pairs.append(("Personal model of a client", text))
    for key, label, when in (
        ("per_client_and_round", "A client and round", " (last round)"),
        ("totals", "All clients and rounds", ""),
    ):
        if "bytes_up" in (sent := summary.get(key) or {}):
            text = f"{size(sent['bytes_up'])} up, {size(sent['bytes_down'])} down"
            pairs.append((label, f"{text}{when}"))
    seconds: Mapping[str, float] = summary.get("seconds", {})
    if seconds:
        pairs.append(("Time", f"{seconds_text(sum(seconds.values()))} in total"))
    if "peak_memory_mb" in summary:
        pairs.append(("Peak memory", size(1e6 * summary["peak_memory_mb"])))
    bars = None
    if seconds:
        rows = sorted(seconds.items(), key=lambda item: -item[1])
        bars = figures.bars(
            [(stage, spent, seconds_text(spent), "rest") for stage, spent in rows], "Time by stage"
        )
    curves = learning(run.history, figures)
    title = "Training: bytes and time"
    return section("cost", title, "Bytes and time", definitions(pairs), bars, curves)


def learning(history: Sequence[Mapping[str, Any]], figures: Figures) -> Html | None:
    """Prediction loss and validation error by round."""
    names = (("loss_prediction", "truth", "training"), ("val_mse", "method", "validation"))
    curves = [
        ([line.get(key) for line in history], kind, text)
        for key, kind, text in names
        if any(line.get(key) is not None for line in history)
    ]
    if len(history) < 2 or not curves:
        return None
    rounds = [float(line["round"]) for line in history]
    last = ", ".join(f"{text} {number(values[-1])}" for values, _, text in curves)
    return figures.figure(
        lambda chart: draw_curves(
            chart, rounds, [(values, kind) for values, kind, _ in curves], "MSE (z-scored)"
        ),
        "Error of the personal models by round",
        height=220,
        keys=[(kind, text) for _, kind, text in curves],
        description=f"In the last round: {last}.",
        caption="Means over the clients. A curve that still falls at the end suggests more rounds.",
    )


# -- privacy, notes and settings ---------------------------------------------------------------


def privacy(run: RunFiles, figures: Figures) -> Section:
    """What left the clients, in plain words."""
    local = "totals" in run.summary  # a site knows only its own part
    points = [
        *revealed(run.summary, run.audit),
        "This page contains actual values and names of clients: share it only with people who may"
        " see them.",
    ]
    guarantee = "privacy" in run.summary
    where = (
        "This run had the data of all clients in one place, and added noise to their sums there."
        " What is in those sums, and what later forecasts add to them:"
        if local and guarantee
        else "This run had the data of all clients in one place, so nothing was sent to anybody."
        " In a federation across organisations, the same settings mean:"
        if local
        else "What left this site in this run:"
    )
    return section("privacy", "What leaves a client", "Privacy", el("p", where), bullets(points))


def notes(run: RunFiles, figures: Figures) -> Section | None:
    """What else a reader should know about the data and the run."""
    found = [(label, text) for label, text in facts(run.summary).items() if label not in ELSEWHERE]
    data = run.summary["data"]
    clients = count_of(data["clients"], "client")
    if data["clients_scored"] != data["clients"]:
        clients += f", {number(data['clients_scored'])} of them with values to compare"
    pairs = [("Data", str(data["name"])), ("Unit", run.unit or "not given (--unit names it)")]
    content = definitions([*pairs, ("Clients", clients), *found])
    return section("notes", "Notes on the data", "Notes", content)


def settings(run: RunFiles, figures: Figures) -> Section:
    """What reproduces the run."""
    place = ("settings", "Settings to reproduce this run", "Settings")
    version = f"fuels {run.summary['version']}"
    if not run.config:
        return section(*place, el("p", f"Made with {version}. The folder has no config.toml."))
    noise = "the same results up to the noise of its sums, which nobody can draw again"
    same = noise if "privacy" in run.summary else "the same results, to the byte"
    text = (
        f"Made with {version}, method {run.title}, seed {run.summary['settings']['seed']}. The same"
        f" settings and data give {same}. The text below is the file config.toml of the run folder:"
    )
    return section(
        *place, el("p", text), code("fuels run --config config.toml --out again"), code(run.config)
    )
