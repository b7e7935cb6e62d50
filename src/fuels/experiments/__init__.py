"""Every table and figure of the paper as a command. A new one: a file, and a line in names.py."""

from __future__ import annotations

from fuels.experiments.base import Experiment
from fuels.names import EXPERIMENTS as NAMES
from fuels.names import load

EXPERIMENTS: dict[str, Experiment] = {
    name: load("experiments", name, "EXPERIMENT") for name in NAMES
}
