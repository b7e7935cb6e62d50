"""FUELS and four variants of it, each without one of its parts (the paper's Table 7)."""

from __future__ import annotations

from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import Variant, dots, study, title_of, wide_table
from fuels.research.study.compare import significance

VARIANTS = [
    Variant("FUELS"),
    Variant("w/o inter", changes={"options": {"inter": False}}),
    Variant("w/o intra", changes={"options": {"intra": False}}),
    Variant("w/o p-aware", changes={"options": {"periodic": False}}),
    Variant("w/o W", changes={"options": {"filter": False}}),
]


def run(context: Context) -> Result:
    found = study(context, VARIANTS)
    text = [
        f"{title_of(source)}: {sentence}"
        for source, comparison in found.items()
        for sentence in significance(comparison)
    ]
    whole = next(iter(found.values()))
    concatenated, periodic = whole.row("w/o p-aware"), whole.row("FUELS")
    if concatenated is not None and periodic is not None:
        long, short = (round(row.sent("numbers_up")) for row in (concatenated, periodic))
        text.append(
            f"The concatenation prototype is {long} numbers, {long // short} times the periodic one"
            f" ({short}), for {long // short} training periods. The paper has 888 x 256 = 227328"
            " for 37 periods."
        )
    text += [
        "Without the inter-client term the prototype is still sent, and nothing comes back.",
        paper.NOT_COMPARABLE,
    ]
    picture = dots(
        found,
        "FUELS without one of its parts",
        "MSE, mean over the clients; blue: FUELS as it is, orange: the best method, diamonds:"
        " references.",
    )
    tables = {
        "ablation": wide_table(found, "FUELS and four variants", first="variant"),
        "ablation-paper": paper.table(paper.ABLATION, "Table 7", "variant"),
    }
    return Result(tables, {"ablation": picture}, text)


EXPERIMENT = Experiment(
    name="ablation",
    title="FUELS and four variants without one part each",
    run=run,
    quick=Budget(clients=16, rounds=50),
    paper=Budget(clients=100, rounds=200),
)
