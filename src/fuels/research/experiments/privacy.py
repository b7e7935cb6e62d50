"""Noise on the uploaded prototypes, beside none and beside FedAvg (the paper's Table 4).

It is called noise and nothing else: entries are not clipped and no budget is kept, so there is no
statement of differential privacy.
"""

from __future__ import annotations

from fuels.privacy.noise import KINDS
from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import Variant, dots, study, title_of, wide_table
from fuels.research.study.compare import Comparison

ALONE = "FUELS w/o inter"  # nothing comes back from the others: what noise could cost at most
WRITTEN = {"laplace": "Laplace", "gaussian": "Gaussian", "exponential": "exponential"}


def run(context: Context) -> Result:
    scales = context.numbers("scales")
    variants = [Variant("FedAvg", "fedavg"), Variant("FUELS")]
    variants += [Variant(ALONE, changes={"options": {"inter": False}})]
    variants += [
        Variant(
            f"FUELS + {WRITTEN[kind]} {scale:g}",
            changes={"options": {"noise": kind, "noise_scale": scale}},
        )
        for scale in scales
        for kind in KINDS
    ]
    found = study(context, variants)
    text = [verdict(title_of(source), comparison) for source, comparison in found.items()]
    text += [
        "Noise is added to every entry of the uploaded prototype, anew in every round. The number"
        " is its standard deviation (Laplace has b = 1 / sqrt 2 times it); the exponential is not"
        " centred: its mean is that number too.",
        "Entries of a prototype lie between -1 and 1, so noise of 1 buries them. This is no"
        " differential privacy: nothing is clipped and no budget is kept.",
        paper.NOT_COMPARABLE,
    ]
    picture = dots(
        found,
        "FUELS with noise on the uploaded prototypes",
        "MSE, mean over the clients; blue: FUELS without noise, orange: the best method, diamonds:"
        " references.",
    )
    tables = {
        "privacy": wide_table(found, "FUELS with noise on what it uploads"),
        "privacy-paper": paper.table(paper.NOISE, "Table 4"),
    }
    return Result(tables, {"privacy": picture}, text)


def verdict(title: str, comparison: Comparison) -> str:
    """How much the noise costs, whether FUELS stays ahead of FedAvg, and of nothing shared."""
    fedavg, plain, alone, *noised = comparison.methods
    changes = [100 * (row.mean() / plain.mean() - 1) for row in noised]
    side = "lower" if plain.mean() < fedavg.mean() else "not lower"
    ahead, useful = (sum(row.mean() < other.mean() for row in noised) for other in (fedavg, alone))
    return (
        f"{title}: noise changes the MSE of FUELS by {min(changes):+.1f} to {max(changes):+.1f} %;"
        f" {ahead} of {len(noised)} noised variants have a lower MSE than FedAvg; without noise"
        f" that of FUELS is {side} than FedAvg's. {useful} of {len(noised)} are below FUELS without"
        " the inter-client term, which uses nothing of the others: where they are not, noised"
        " prototypes did harm instead of good."
    )


EXPERIMENT = Experiment(
    name="privacy",
    title="Noise on the uploaded prototypes",
    run=run,
    quick=Budget(clients=16, rounds=50),
    paper=Budget(clients=100, rounds=200),
    methods=("fedavg", "fuels"),
    options={"scales": "1"},
)
