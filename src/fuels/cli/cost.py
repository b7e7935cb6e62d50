"""`fuels cost`: what a federation of given sizes costs, computed without a run."""

from __future__ import annotations

import json

import typer

from fuels.cli import options as opt
from fuels.research.costs import Sizes, costs, known

SIZES = "Sizes"


@opt.with_fields(
    "sizes",
    Sizes,
    {
        "clients": opt.option("", "Clients, N.", SIZES, default=100, min=1),
        "period": opt.option(
            "", "Steps in a period, and rows of a batch.", SIZES, default=24, min=2
        ),
        "hidden": opt.option("", "Width of one GRU.", SIZES, default=128, min=1),
        "closeness": opt.option("", "Recent values in a sample, c.", SIZES, default=3, min=1),
        "periodicity": opt.option("", "Earlier periods in a sample, q.", SIZES, default=3, min=1),
        "train_periods": opt.option(
            "", "Periods of the training part.", SIZES, name="--days", default=40, min=1
        ),
        "test_periods": opt.option(
            "", "Periods to forecast, for inference.", SIZES, name="--test-days", default=11, min=1
        ),
        "rounds": opt.option("", "Rounds, T.", SIZES, default=200, min=1),
        "selection": opt.option(
            "",
            "Share of the clients that train in a round, alpha; 0 means the method's default (a"
            " tenth for FedDA, all clients for the others).",
            SIZES,
            default=0.0,
            min=0.0,
            max=1.0,
        ),
        "local_epochs": opt.option(
            "", "Local epochs in a round.", SIZES, name="--epochs", default=1, min=1
        ),
    },
)
def cost_command(
    sizes: Sizes,
    methods: str = opt.option("A,B,...|all", "Methods to compare.", default="all"),
    json_: bool = opt.JSON,
) -> None:
    """Compute the numbers sent and the operations of each method for the sizes you give.

    Nothing is trained: all figures follow from the sizes.

    Example: fuels cost --clients 1000 --rounds 100 --selection 0.1
    """
    from fuels.report.tables import show
    from fuels.research.cost_tables import sent_table, server_table, to_json, work_table

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
