"""The main table: every method on SMS, Call and Net, or on the data given (the paper's Table 1)."""

from __future__ import annotations

from fuels.methods.registry import METHODS, find_method
from fuels.research.experiments import paper
from fuels.research.experiments.base import TRIO, Budget, Context, Experiment, Result
from fuels.research.experiments.grid import (
    Variant,
    dots,
    each_source,
    study,
    title_of,
    wide_table,
)
from fuels.research.study.compare import against_references, general_notes, significance, table


def run(context: Context) -> Result:
    variants = [Variant(find_method(name).title, name) for name in METHODS]
    found = study(context, variants)
    tables = {
        "performance": wide_table(found, "Test errors of all methods and references"),
        **{
            f"performance-{title_of(source).lower()}": table(comparison)
            for source, comparison in found.items()
        },
        "performance-paper": paper.table(paper.PERFORMANCE, "Table 1"),
    }
    text = each_source(found, lambda each: [*significance(each), *against_references(each)])
    text += general_notes(next(iter(found.values())))
    model = next(iter(found.values())).row("FedAvg")
    if model is not None:
        text.append(
            f"A model has {round(model.sent('numbers_up'))} numbers here and 100737 in the paper,"
            " which fits a decoder that sees one branch of the encoder; ours sees both. FedRep is"
            " counted by what it sends, which is only the encoder."
        )
    picture = dots(
        found,
        "Test error of every method",
        "MSE, mean over the clients; blue: FUELS, orange: the best method, diamonds: references."
        " Further left is better.",
    )
    return Result(tables, {"performance": picture}, [*text, paper.NOT_COMPARABLE])


EXPERIMENT = Experiment(
    name="performance",
    title="Errors of all methods on SMS, Call and Net",
    run=run,
    quick=Budget(clients=16, rounds=12),
    paper=Budget(clients=100, rounds=200, seeds=(0, 1, 2)),
    methods=tuple(METHODS),
    sources=TRIO,
)
