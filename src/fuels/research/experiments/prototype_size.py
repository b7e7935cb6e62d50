"""How wide the prototype must be: hidden 2 to 512 and the numbers sent (the paper's Table 5)."""

from __future__ import annotations

from fuels.errors import FuelsError
from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import Variant, study, sweep, wide_table


def run(context: Context) -> Result:
    given = context.numbers("hidden")
    if any(size < 1 or not size.is_integer() for size in given):
        raise FuelsError(f"--option hidden={context.options['hidden']}: whole numbers from 1 on")
    sizes = [int(size) for size in given]
    variants = [Variant(str(size), changes={"model": {"hidden": size}}) for size in sizes]
    found = study(context, variants)
    picture = sweep(
        found,
        {"hidden size of one GRU": {str(size): size for size in sizes}},
        "What the size of the prototype does to the error of FUELS",
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
        "Hidden is the width of one of the two GRUs, which the paper's table calls d_r: its numbers"
        " sent, 96 for 2 up to 24576 for 512, are 24 x 2 x hidden.",
        paper.NOT_COMPARABLE,
    ]
    return Result(tables, {"prototype-size": picture}, text)


EXPERIMENT = Experiment(
    name="prototype-size",
    title="Effect of the prototype's size",
    run=run,
    quick=Budget(clients=16, rounds=20),
    paper=Budget(clients=100, rounds=200),
    options={"hidden": "2,4,8,16,32,64,128,256,512"},
)
