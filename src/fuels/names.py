"""What users call by name: light, so that help and completion need not import what it stands for.

A name leads to its file: `methods/NAME.py` with the class given here, `experiments/NAME.py` with
its EXPERIMENT; where a name has -, the file has _.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

METHODS = {  # those that tables and `--methods all` hold
    "fuels": "Fuels",
    "solo": "Solo",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "perfedavg": "PerFedAvg",
    "pfedme": "PFedMe",
    "fedda": "FedDA",
}
# Methods that are in none of the paper's tables; they can be run like the others.
EXTENSIONS = {"fuels-start": "FuelsStart"}
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
    "cold-start",
)


def load(package: str, name: str, what: str) -> Any:
    """What a name stands for: `what` of the file that it leads to."""
    return getattr(import_module(f"fuels.{package}.{name.replace('-', '_')}"), what)
