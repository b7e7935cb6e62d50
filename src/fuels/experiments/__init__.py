"""Every table and figure of the paper as a command. A new one is one file and one line here."""

from __future__ import annotations

from fuels.experiments import (
    ablation,
    cold_start,
    communication,
    complexity,
    data,
    filtering,
    hyperparameters,
    metr_la,
    performance,
    predictions,
    privacy,
    prototype_size,
    similarity,
    skill,
    theory,
)
from fuels.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        data,
        performance,
        predictions,
        communication,
        ablation,
        hyperparameters,
        prototype_size,
        similarity,
        filtering,
        privacy,
        metr_la,
        complexity,
        theory,
        skill,
        cold_start,
    )
}
