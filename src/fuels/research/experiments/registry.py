"""Experiments by name. To add one, write a module with an EXPERIMENT and add its name here.

Importing this file imports no experiment, so that help texts and shell completion stay fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuels.research.experiments.base import Experiment

EXPERIMENTS = (
    "data",
    "performance",
    "predictions",
    "communication",
    "ablation",
    "hyperparameters",
    "prototype-size",
    "similarity",
    "filtering",
    "privacy",
    "metr-la",
    "complexity",
    "theory",
    "skill",
    "federation",
    "poisoning",
    "audit",
)


def find_experiment(name: str) -> Experiment:
    """The experiment of a name: NAME.py in this folder, with _ where the name has -."""
    module = import_module(f"fuels.research.experiments.{name.replace('-', '_')}")
    found: Experiment = module.EXPERIMENT
    return found
