"""Noise on the uploaded prototypes, compared with no noise and with FedAvg (the paper's Table 4).

This is noise only: entries are not clipped and no budget is kept, so it makes no statement about
differential privacy.
"""

from __future__ import annotations

from fuels.privacy.noise import KINDS
from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import (
    ALONE,
    Variant,
    dots,
    each_source,
    study,
    title_of,
    wide_table,
)
from fuels.research.study.compare import Comparison
from fuels.research.study.worth import worth

NOT_SHARED = "FUELS w/o inter"  # clients receive nothing: the most that noise could cost
WRITTEN = {"laplace": "Laplace", "gaussian": "Gaussian", "exponential": "exponential"}


def run(context: Context) -> Result:
    scales = context.numbers("scales")
    variants = [Variant("FedAvg", "fedavg"), Variant("FUELS")]
    variants += [Variant(NOT_SHARED, changes={"options": {"inter": False}}), ALONE]
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
    text += each_source(found, worth)
    text += [
        "Every round adds fresh noise to every entry of the uploaded prototype. The number is the"
        " standard deviation of the noise (for Laplace, b = 1 / sqrt 2 times it). Exponential noise"
        " is not centred: its mean is the same number.",
        "The entries of a prototype are between -1 and 1, so noise of 1 drowns them. This is not"
        " differential privacy: nothing is clipped and no budget is kept.",
    ]
    picture = dots(found, "FUELS with noise on the uploaded prototypes", blue="FUELS without noise")
    table = wide_table(found, "FUELS with noise on what it uploads")
    return paper.beside("privacy", table, picture, text)


def verdict(title: str, comparison: Comparison) -> str:
    """What the noise costs, and whether FUELS still beats FedAvg and sharing nothing."""
    fedavg, plain, local, _, *noisy = comparison.methods
    changes = [100 * (row.mean() / plain.mean() - 1) for row in noisy]
    side = "lower" if plain.mean() < fedavg.mean() else "not lower"
    ahead, useful = (sum(row.mean() < other.mean() for row in noisy) for other in (fedavg, local))
    return (
        f"{title}: noise changes the MSE of FUELS by {min(changes):+.1f} to {max(changes):+.1f} %;"
        f" {ahead} of {len(noisy)} variants with noise have a lower MSE than FedAvg; without noise,"
        f" the MSE of FUELS is {side} than FedAvg's. {useful} of {len(noisy)} are below FUELS"
        " without the inter-client term, which uses nothing from the other clients: in the rest,"
        " noisy prototypes do more harm than good."
    )


EXPERIMENT = Experiment(
    name="privacy",
    title="Noise on the uploaded prototypes",
    run=run,
    quick=Budget(clients=16, rounds=50),
    methods=("fedavg", "fuels", "solo"),
    options={"scales": "1"},
)
