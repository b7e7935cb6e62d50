"""report.html on the server of a federation: it knows rounds and sites, no value, no forecast."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuels.data.files import write_text
from fuels.methods.messages import BYTES
from fuels.methods.registry import find_method
from fuels.report.facts import WHY_EXCLUDED, count_of
from fuels.report.page.elements import Html, bullets, definitions, el, joined, notice, table, tiles
from fuels.report.page.shell import NAME, Section, code, page, section
from fuels.report.page.svg import Figures
from fuels.report.privacy import NO_GUARANTEE, exchanged, promised
from fuels.report.run.background import learning, size
from fuels.report.style import number
from fuels.report.tables import Cell, Table, columns
from fuels.storage.run_folder import RunFolder

Summary = Mapping[str, Any]


def write_federation_report(folder: Path, summary: Summary | None = None) -> Path:
    """Write report.html into the server's folder of a run."""
    files = RunFolder(folder)
    found = files.read_summary() if summary is None else summary
    config = files.config.read_text(encoding="utf-8") if files.config.is_file() else ""
    return write_text(folder / NAME, federation_page(folder.name, found, files.history(), config))


def federation_page(name: str, summary: Summary, history: list[dict[str, Any]], config: str) -> str:
    figures = Figures()
    title = find_method(summary["method"]).title
    sections = [
        about(title, summary),
        Section("sites", "Who took part", participants(summary)),
        Section("training", "Training by round", training(summary, history, figures), "Training"),
        Section("trouble", "Missing and refused replies", trouble(summary, history), "Trouble"),
        Section("privacy", "What the server received", privacy(summary, config), "Privacy"),
    ]
    if config:
        sections.append(Section("settings", "Settings of this run", code(config), "Settings"))
    clients = sum(summary["sites"].values())
    subtitle = f"{count_of(len(summary['sites']), 'site')}, {count_of(clients, 'client')}, {name}"
    foot = f"Made by fuels {summary['version']} from the server's folder of the run."
    return page(f"Federation: {title}", subtitle, sections, foot)


def about(title: str, summary: Summary) -> Section:
    sites, clients = len(summary["sites"]), sum(summary["sites"].values())
    said = (
        f"{count_of(sites, 'site')} trained personal forecasters for {count_of(clients, 'client')}"
        f" together with {title}, in {count_of(summary['rounds'], 'round')}. The data, the models"
        " and the forecasts are at the sites; each site has its own report on accuracy."
    )
    waiting = summary.get("unconfirmed", ())
    verb = "have" if len(waiting) > 1 else "has"
    missing = f"{', '.join(waiting)} {verb} not confirmed that the models were saved."
    best = summary.get("best_val_mse")
    meaning = "sites sent no figures" if best is None else "MSE, z-scored, mean over the clients"
    shown = [
        ("Sites", number(sites), f"{number(clients)} clients"),
        ("Lowest validation error", number(best), meaning),
        ("Best round", number(summary["best_round"]) if summary["best_round"] else "–", ""),
    ]
    return section(
        "summary",
        "Summary",
        "",
        el("p", said, class_="lead"),
        notice("Not complete.", missing) if waiting else None,
        tiles(shown),
    )


def participants(summary: Summary) -> Html:
    refused, waiting = summary.get("refused", {}), set(summary.get("unconfirmed", ()))
    rows: list[list[Cell]] = []
    for site, clients in summary["sites"].items():
        saved = "not confirmed" if site in waiting else "saved"
        rows.append([site, clients, sum(refused.get(site, {}).values()), saved])
    headings = columns("site | clients | refused (replies) | models")
    return table(Table(headings, rows, "Sites of this run"))


def training(summary: Summary, history: list[dict[str, Any]], figures: Figures) -> Html:
    totals = summary["totals"]
    up, down = (BYTES * totals[f"numbers_{way}"] for way in ("up", "down"))
    pairs = [("Rounds", number(summary["rounds"]))]
    if "masked" not in summary:  # otherwise a site sends one sum, however many clients it has
        pairs.append(("Uploads of all clients", size(up)))
    pairs.append(("Downloads of all clients", size(down)))
    if (counters := summary.get("counters", {})).get("messages"):
        received, sent = (size(counters.get(f"bytes_{way}", 0)) for way in ("up", "down"))
        text = f"{number(counters['messages'])}, {received} received and {sent} sent"
        pairs.append(("All messages", text))
    if history:
        fewest = min(line["clients"] for line in history)
        pairs.append(("Clients in a round", f"{number(fewest)} at least"))
    return joined([definitions(pairs), learning(history, figures)])


def trouble(summary: Summary, history: list[dict[str, Any]]) -> Html:
    """Failures, exclusions and uploads that were not used."""
    found: list[str] = []
    for line in history:
        found += [f"Round {line['round']}: {text}" for text in line.get("failures") or ()]
    said = found[:20]
    if len(found) > len(said):
        said.append(f"... and {number(len(found) - len(said))} more, in metrics.jsonl.")
    if excluded := summary.get("excluded"):
        said.append(f"Excluded, because {WHY_EXCLUDED}: {', '.join(excluded)}")
    for client, rounds in sorted((summary.get("unused_uploads") or {}).items()):
        said.append(f"Not used in {count_of(rounds, 'round')}, too far from the others: {client}")
    for site, reasons in summary.get("refused", {}).items():
        said += [f"Refused from {site}, {times(count)}: {why}" for why, count in reasons.items()]
    return bullets(said) if said else el("p", "No reply was missing or refused.")


def times(count: int) -> str:
    return "once" if count == 1 else f"{number(count)} times"


def sums(found: Mapping[str, Any] | None) -> list[str]:
    """The sums of a run: the totals that the server received, and why others are missing."""
    if found is None:
        return []
    done = [
        f"Of the {name.replace('_', ' ')}, it received totals over"
        f" {', '.join(found[name]['sites'])}, whose contributions were masked."
        for name in ("mean_day", "live_mean", "statistics")
        if name in found
    ]
    missing = [f"No {n.replace('_', ' ')}: {reason}." for n, reason in found["skipped"].items()]
    return [*done, *missing]


def privacy(summary: Summary, config: str) -> Html:
    guarantee = summary.get("privacy")
    figures = "Sites may also send losses and validation errors, if their owners allow it."
    return bullets(
        [
            exchanged(summary["method"], tomllib.loads(config).get("privacy", {})),
            *([] if guarantee else [figures]),
            *sums(summary.get("sums")),
            "The server has no series and no forecast.",
            *(promised(guarantee) if guarantee else [NO_GUARANTEE]),
        ]
    )
