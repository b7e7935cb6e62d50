"""FUELS and four variants, each without one of its parts (the paper's Table 7)."""

from __future__ import annotations

from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import ALONE, Variant, dots, each_source, study, wide_table
from fuels.research.study.compare import significance
from fuels.research.study.worth import worth

VARIANTS = [
    Variant("FUELS"),
    Variant("w/o inter", changes={"options": {"inter": False}}),
    Variant("w/o intra", changes={"options": {"intra": False}}),
    Variant("w/o p-aware", changes={"options": {"periodic": False}}),
    Variant("w/o W", changes={"options": {"filter": False}}),
    ALONE,
]


def run(context: Context) -> Result:
    found = study(context, VARIANTS)
    text = each_source(found, lambda one: [*significance(one), *worth(one)])
    whole = next(iter(found.values()))
    concatenated, periodic = whole.row("w/o p-aware"), whole.row("FUELS")
    if concatenated is not None and periodic is not None:
        long, short = (round(row.sent("numbers_up")) for row in (concatenated, periodic))
        text.append(
            f"The concatenated prototype has {long} numbers, {long // short} times as many as the"
            f" periodic one ({short}), for {long // short} training periods. The paper has 888 x"
            " 256 = 227328 for 37 periods."
        )
    text += [
        "Without the inter-client term, clients still send the prototype but receive nothing; Solo"
        " trains without the other terms, too.",
    ]
    picture = dots(found, "FUELS without one of its parts", blue="complete FUELS")
    table = wide_table(found, "FUELS and four variants", first="variant")
    return paper.beside("ablation", table, picture, text)


EXPERIMENT = Experiment(
    name="ablation",
    title="FUELS and four variants without one part each",
    run=run,
    quick=Budget(clients=16, rounds=50),
    methods=("fuels", "solo"),
    options={"divide": ""},
)
