"""`fuels cost`: what a federation of given sizes costs, computed without a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from fuels.cli import options as opt

if TYPE_CHECKING:
    from fuels.report.tables import Table
    from fuels.research.costs import Cost, Sizes

SIZES = "Sizes"


def cost_command(
    clients: int = opt.option("", "Clients, N.", SIZES, default=100, min=1),
    period: int = opt.option(
        "", "Steps in a period, and rows of a batch.", SIZES, default=24, min=2
    ),
    hidden: int = opt.option("", "Width of one GRU.", SIZES, default=128, min=1),
    closeness: int = opt.option("", "Recent values in a sample, c.", SIZES, default=3, min=1),
    periodicity: int = opt.option("", "Earlier periods in a sample, q.", SIZES, default=3, min=1),
    days: int = opt.option("", "Periods of the training part.", SIZES, default=40, min=1),
    test_days: int = opt.option(
        "", "Periods to forecast, for inference.", SIZES, default=11, min=1
    ),
    rounds: int = opt.option("", "Rounds, T.", SIZES, default=200, min=1),
    selection: float = opt.option(
        "",
        "Share of the clients that train in a round, alpha; 0 means the method's default (a"
        " tenth for FedDA, all clients for the others).",
        SIZES,
        default=0.0,
        min=0.0,
        max=1.0,
    ),
    epochs: int = opt.option("", "Local epochs in a round.", SIZES, default=1, min=1),
    methods: str = opt.option("A,B,...|all", "Methods to compare.", default="all"),
    json_: bool = opt.JSON,
) -> None:
    """Compute the numbers sent and the operations of each method for the sizes you give.

    Nothing is trained: all figures follow from the sizes.

    Example: fuels cost --clients 1000 --rounds 100 --selection 0.1
    """

    from fuels.report.tables import show
    from fuels.research.costs import Sizes, costs, known

    sizes = Sizes(
        clients=clients,
        period=period,
        hidden=hidden,
        closeness=closeness,
        periodicity=periodicity,
        train_periods=days,
        test_periods=test_days,
        rounds=rounds,
        selection=selection,
        local_epochs=epochs,
    )
    found = costs(sizes, known(methods))
    if json_:
        typer.echo(json.dumps(to_json(sizes, found), indent=2))
        return
    note = (
        "Operations are multiply-adds of matrix products. appendix: counted as in the paper's"
        " complexity table, where a backward pass costs as much as a forward pass; code: what is"
        " actually computed. The appendix counts the server's work in pairwise divergences, and an"
        " average as one."
    )
    show([sent_table(found, sizes), work_table(found, sizes), server_table(found)], [note])


def sent_table(found: Sequence[Cost], sizes: Sizes) -> Table:
    """What travels: per client and round, from the server, and over the whole training."""
    from fuels.report.tables import Table, columns

    return Table(
        columns=columns(
            "method | clients a round | a client sends (numbers a round)"
            " | a client gets (numbers a round) | the server sends (numbers a round) | in all (MB)"
        ),
        rows=[[c.title, c.chosen, c.up, c.down, c.server_down, c.bytes_total / 1e6] for c in found],
        title=f"Numbers sent, {sizes.clients:,} clients and {sizes.rounds:,} rounds",
    )


def work_table(found: Sequence[Cost], sizes: Sizes) -> Table:
    """What a client computes in a round, in millions of multiply-adds."""
    from fuels.report.tables import Table, columns

    return Table(
        columns=columns(
            "method | training, client (appendix) | training, client (code)"
            " | inference, client (appendix) | inference, client (code)"
        ),
        rows=[
            [
                c.title,
                *(None if work is None else work / 1e6 for work in (c.train_appendix, c.train)),
                *(None if work is None else work / 1e6 for work in (c.infer_appendix, c.infer)),
            ]
            for c in found
        ],
        title=f"Millions of operations in a round of {sizes.iterations} batches, and to forecast"
        f" {sizes.test_periods} periods",
    )


def server_table(found: Sequence[Cost]) -> Table:
    """What the server computes in a round."""
    from fuels.report.tables import Table, columns

    return Table(
        columns=columns(
            "method | server (appendix) | divergences (pairs, code) | operations (millions, code)"
        ),
        rows=[[c.title, c.server_appendix, c.pairs, c.server / 1e6] for c in found],
        title="What the server computes in a round",
    )


def to_json(sizes: Sizes, found: Sequence[Cost]) -> dict[str, Any]:
    """All figures, with the values of FE, FF and FD."""
    return {
        "sizes": asdict(sizes)
        | {name: getattr(sizes, name) for name in ("iterations", "model", "encoder", "prototype")}
        | {"FE": sizes.encode, "FF": sizes.filter, "FD": sizes.decode},
        "methods": {
            cost.method: asdict(cost)
            | {"server_down": cost.server_down, "bytes_total": cost.bytes_total}
            for cost in found
        },
    }
