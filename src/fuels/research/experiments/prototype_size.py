"""The width of the prototype: hidden sizes 2 to 512, and the numbers sent (the paper's Table 5)."""

from __future__ import annotations

from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import Variant, study, sweep, wide_table


def run(context: Context) -> Result:
    sizes = context.whole_numbers("hidden")
    variants = [Variant(str(size), changes={"model": {"hidden": size}}) for size in sizes]
    found = study(context, variants)
    picture = sweep(
        found,
        {"hidden size of one GRU": {str(size): size for size in sizes}},
        "Error of FUELS by the size of the prototype",
        "MSE of the test part, mean over the clients. A prototype has 24 rows of twice the hidden"
        " size for hourly data.",
    )
    tables = {
        "prototype-size": wide_table(found, "FUELS with prototypes of other sizes", first="hidden"),
        "prototype-size-paper": paper.table(
            {str(size): entry for size, entry in paper.SIZES.items()}, "Table 5", "hidden"
        ),
    }
    text = [
        "Hidden is the width of one of the two GRUs. The paper's table calls it d_r: the numbers it"
        " sends, from 96 for 2 to 24576 for 512, are 24 x 2 x hidden.",
        paper.NOT_COMPARABLE,
    ]
    return Result(tables, {"prototype-size": picture}, text)


EXPERIMENT = Experiment(
    name="prototype-size",
    title="Effect of the prototype's size",
    run=run,
    quick=Budget(clients=16, rounds=20),
    options={"hidden": "2,4,8,16,32,64,128,256,512"},
)
