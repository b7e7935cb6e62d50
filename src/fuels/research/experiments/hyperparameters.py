"""One setting of FUELS at a time: beta (a percentile), tau and rho (the paper's RQ5)."""

from __future__ import annotations

from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import (
    ALONE,
    Variant,
    each_source,
    study,
    sweep,
    title_of,
    wide_table,
)
from fuels.research.study.worth import worth

VARIED = ("beta", "tau", "rho")


def run(context: Context) -> Result:
    grid = {name: context.numbers(name) for name in VARIED}
    panels = {
        name: {label(name, value): value for value in values} for name, values in grid.items()
    }
    variants = [
        Variant(label(name, value), changes={"options": {name: value}})
        for name, values in grid.items()
        for value in values
    ]
    found = study(context, [*variants, ALONE])
    text = []
    for source, comparison in found.items():
        for values in panels.values():
            rows = [row for row in comparison.methods if row.name in values]
            best = min(rows, key=lambda row: row.mean())
            worst = max(rows, key=lambda row: row.mean())
            gap = 100 * (worst.mean() / best.mean() - 1)
            text.append(
                f"{title_of(source)}: {best.name} has the lowest MSE; that of {worst.name}, the"
                f" highest, is {gap:.0f} % higher."
            )
    text += each_source(found, worth)
    text.append(
        "The paper shows this for SMS as a figure without numbers and finds beta = 50, tau = 0.02"
        " and rho = 5 best; settings that are not varied keep these values."
    )
    picture = sweep(
        found,
        {f"{name}{' (percentile)' if name == 'beta' else ''}": panels[name] for name in panels},
        "Error of FUELS by beta, tau and rho",
        "MSE of the test part, mean over the clients; one setting is varied at a time.",
    )
    tables = {
        "hyperparameters": wide_table(found, "FUELS with one setting varied", first="setting")
    }
    return Result(tables, {"hyperparameters": picture}, text)


def label(name: str, value: float) -> str:
    return f"{name} = {value:g}"


EXPERIMENT = Experiment(
    name="hyperparameters",
    title="Effect of beta, tau and rho",
    run=run,
    quick=Budget(clients=16, rounds=20),
    methods=("fuels", "solo"),
    options={"beta": "10,30,50,70,90", "tau": "0.02,0.05,0.1,0.5,1", "rho": "0.5,1,5,10,20"},
)
