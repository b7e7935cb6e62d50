"""METR-LA: road speeds in Los Angeles, by the hour or by 5 minutes (the paper's Table 6).

Needs the data: --data FILE, or the environment variable FUELS_DATA naming a folder that holds it.
A speed of 0 marks a missing value, unless zeros=speeds takes it for a speed, as the paper most
likely did. Hourly values are means of the observed values.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fuels.errors import FuelsError
from fuels.methods.registry import METHODS, find_method
from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import Variant, dots, study
from fuels.research.study.compare import notes, table

FILE = "metr_la_first10_full_5min.npz"
SPAN = (np.datetime64("2012-03-01"), np.datetime64("2012-06-28"))  # of all of METR-LA
STEPS: dict[str, dict[str, Any]] = {
    "1h": {"data": {"resample": "1h", "how": "mean"}, "windows": {"period": 24}},
    "5min": {"windows": {"period": 288}},
}
ZEROS = {"missing": "0", "speeds": "none"}


def run(context: Context) -> Result:
    step = context.options["step"]
    if step not in STEPS:
        raise FuelsError(f"--option step={step}: METR-LA is run with step=1h or step=5min")
    zeros = context.options["zeros"]
    if zeros not in ZEROS:
        raise FuelsError(f"--option zeros={zeros}: choose one of {', '.join(ZEROS)}")
    need_metr_la(context)
    shape = {**STEPS[step], "data": {"missing": ZEROS[zeros], **STEPS[step].get("data", {})}}
    variants = [Variant(find_method(name).title, name, shape) for name in METHODS]
    found = study(context, variants)
    comparison = next(iter(found.values()))
    combined = paper.with_paper_errors(table(comparison), paper.TABLES["metr-la"]["errors"])
    text = [
        *notes(comparison),
        "The paper's figures (Table 6) are for all 207 sensors and it does not say how it used the"
        f" 5-minute values; ours are for {len(comparison.record.clients)} sensors by"
        f" {'hourly means' if step == '1h' else '5-minute values'}, with zeros taken for"
        f" {'missing values' if zeros == 'missing' else 'speeds'}.",
        "The paper dates METR-LA 2012-01-01 to 2012-06-30; the data run from 2012-03-01 to"
        " 2012-06-27.",
    ]
    picture = dots(found, "METR-LA: test error of every method")
    return Result({"metr-la": combined}, {"metr-la": picture}, text)


def need_metr_la(context: Context) -> None:
    """Refuse other data: the table carries METR-LA's name and the paper's figures for it."""
    if len(context.sources) > 1:
        raise FuelsError("experiment metr-la takes one --data, a file of METR-LA")
    panel = context.store.panel(context.settings())
    if panel.synthetic or not SPAN[0] <= panel.start < SPAN[1]:
        raise FuelsError(
            f"{panel.name}: not METR-LA, which runs from {SPAN[0]} to {SPAN[1]}; for other data use"
            " fuels compare or fuels experiment performance"
        )


def find_data() -> str:
    """The file in the folder that the environment variable names."""
    folder = os.environ.get("FUELS_DATA")
    if not folder:
        raise FuelsError(
            "experiment metr-la needs its data: give --data FILE, or set FUELS_DATA to a folder"
            f" that holds {FILE}"
        )
    path = Path(folder) / FILE
    if not path.is_file():
        raise FuelsError(f"FUELS_DATA names {folder}, which holds no {FILE}; give --data FILE")
    return str(path)


EXPERIMENT = Experiment(
    name="metr-la",
    title="METR-LA: errors of all methods on road speeds",
    run=run,
    quick=Budget(clients=0, rounds=20),
    paper=Budget(clients=0, rounds=200, seeds=(0, 1, 2)),
    sources=(),
    find_data=find_data,
    methods=tuple(METHODS),
    options={"step": "1h", "zeros": "missing"},
)
