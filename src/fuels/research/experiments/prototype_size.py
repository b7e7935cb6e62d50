"""The width of the prototype: hidden sizes 2 to 512, and the numbers sent (the paper's Table 5)."""

from __future__ import annotations

from dataclasses import replace

from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import (
    ALONE,
    Variant,
    each_source,
    study,
    sweep,
    wide_table,
)
from fuels.research.study.compare import Comparison
from fuels.research.study.worth import against


def run(context: Context) -> Result:
    sizes = context.whole_numbers("hidden")
    variants = [Variant(str(size), changes={"model": {"hidden": size}}) for size in sizes]
    found = study(context, [*variants, ALONE])
    picture = sweep(
        found,
        {"hidden size of one GRU": {str(size): size for size in sizes}},
        "Error of FUELS by the size of the prototype",
        "MSE of the test part, mean over the clients. A prototype has 24 rows of twice the hidden"
        " size for hourly data.",
    )
    table = wide_table(found, "FUELS with prototypes of other sizes", first="hidden")
    text = [
        *each_source(found, worth_of_the_best),
        "Hidden is the width of one of the two GRUs. The paper's table calls it d_r: the numbers it"
        " sends, from 96 for 2 to 24576 for 512, are 24 x 2 x hidden.",
    ]
    return paper.beside("prototype-size", table, picture, text)


def worth_of_the_best(comparison: Comparison) -> list[str]:
    """What federation is worth with the best size, against Solo with the size of the settings."""
    base = comparison.row(ALONE.name)
    best = next(row for row in comparison.ranking if row.name != ALONE.name)
    named = replace(best, name=f"FUELS with hidden {best.name}")
    return [] if base is None else [against(named, base)]


EXPERIMENT = Experiment(
    name="prototype-size",
    title="Effect of the prototype's size",
    run=run,
    quick=Budget(clients=16, rounds=20),
    methods=("fuels", "solo"),
    options={"hidden": "2,4,8,16,32,64,128,256,512"},
)
