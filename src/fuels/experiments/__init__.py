"""Every table and figure of the paper as a command. A new one is one file and one line here."""

from __future__ import annotations

from fuels.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in ()}
