"""Training error against the amount sent, for the methods of the paper's figure and FedAvg."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuels.arrays import Floats
from fuels.methods.messages import BYTES
from fuels.methods.registry import find_method
from fuels.report import style
from fuels.report.tables import Cell, Table, columns
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import (
    WIDE_RANGE,
    Variant,
    by_source,
    common_footer,
    name_panel,
    study,
    title_of,
)
from fuels.research.study.compare import Comparison, Row

SHOWN = ("fuels", "fedrep", "pfedme", "fedavg")
LOOKS: tuple[style.Look, ...] = (
    {"color": style.METHOD, "linewidth": 2.2},
    {"color": style.RIVAL, "linewidth": 1.7},
    {"color": style.QUIET, "linewidth": 1.5, "linestyle": (0, (5, 2))},
    {"color": style.QUIET, "linewidth": 1.5, "linestyle": (0, (1, 1.4))},
)


def run(context: Context) -> Result:
    found = study(context, [Variant(find_method(name).title, name) for name in SHOWN])
    tables, text = {}, []
    for source, name in by_source("communication", found).items():
        tables[name], sentence = reached(found[source], title_of(source))
        text.append(sentence)
    text += [
        "Training MSE is the prediction loss of a round, averaged over batches and clients: for"
        " FedRep over the head and the body phase, for pFedMe before its steps on each batch. The"
        " amount is what a client sends and receives, at 4 bytes per number.",
        "The paper's figure (SMS and Net of Trentino) gives no numbers for its curves; it finds"
        " that pFedMe and FedRep need far more data than FUELS for the same training MSE.",
    ]
    return Result(tables, {"communication": draw(found)}, text)


def curve(row: Row) -> tuple[Floats, Floats]:
    """Cumulative megabytes per client and training MSE by round, mean over seeds, [round]."""
    rounds = min(record.rounds for record in row.records)
    sent = np.mean([record.sent_per_client()[:rounds] for record in row.records], axis=0)
    loss = np.mean([record.history["loss_prediction"][:rounds] for record in row.records], axis=0)
    return BYTES * sent / 1e6, loss


def reached(comparison: Comparison, title: str) -> tuple[Table, str]:
    """What each method sends until it reaches the lowest training MSE that all of them reach."""
    curves = {row.name: curve(row) for row in comparison.methods}
    level = max(float(np.nanmin(loss)) for _, loss in curves.values())
    rows: list[list[Cell]] = []
    for row in comparison.methods:
        sent, loss = curves[row.name]
        first = int(np.argmax(loss <= level))
        each = round(row.sent("numbers_up")), round(row.sent("numbers_down"))
        rows.append([row.name, *each, first + 1, float(sent[first]), float(sent[-1]), loss[-1]])
    table = Table(
        columns(
            f"method | up (numbers) | down (numbers) | round (to MSE {style.number(level, 3)}) ↓"
            f" | sent (MB to MSE {style.number(level, 3)}) ↓ | sent in all (MB per client) ↓"
            " | last training MSE (z-scored) ↓"
        ),
        rows,
        f"{title}: what training costs, per client",
    )
    needed = {str(row[0]): row[4] for row in rows if isinstance(row[4], float)}
    others = [
        f"{name} {style.number(100 * needed['FUELS'] / amount, 2)} %"
        for name, amount in needed.items()
        if name != "FUELS"
    ]
    return table, (
        f"{title}: to reach a training MSE of {style.number(level, 3)}, as all four methods do,"
        f" FUELS sends this share of what the others send: {', '.join(others)}."
    )


def draw(found: Mapping[str, Comparison]) -> style.Figure:
    labels = [find_method(name).title for name in SHOWN]
    picture, [axes] = style.figure(
        labels,
        columns=len(found),
        title="Training error against the amount sent",
        subtitle="One point per round; further left and lower is better. Amounts are per client, up"
        " and down together.",
        footer=common_footer(found),
        height=3.6,
        gap=0.3,
    )
    for (source, comparison), axis in zip(found.items(), axes, strict=True):
        amounts: list[float] = []
        losses: list[float] = []
        for row, look in zip(comparison.methods, LOOKS, strict=True):
            sent, loss = curve(row)
            axis.plot(sent, loss, label=row.name, marker="o", markersize=2.5, **look)
            amounts += sent.tolist()
            losses += loss.tolist()
        log = style.log_scale(axis, "x", amounts, WIDE_RANGE)
        style.log_scale(axis, "y", losses, WIDE_RANGE)
        axis.set_xlabel(f"MB per client so far{' (log scale)' if log else ''}")
        name_panel(axis, source, len(found))
    axes[0].set_ylabel("training MSE (z-scored)")
    style.legend(picture, axes[0])
    return picture


EXPERIMENT = Experiment(
    name="communication",
    title="Training error against the amount sent",
    run=run,
    quick=Budget(clients=16, rounds=25),
    methods=SHOWN,
    sources=("synthetic:sms", "synthetic:net"),
)
