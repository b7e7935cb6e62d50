"""Records of runs that were never made, with errors one can work out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fuels.methods.registry import find_method
from fuels.research.study.record import Record


def record(
    method: str, seed: int, mse: Sequence[float], clients: Sequence[str] = (), **training: Any
) -> Record:
    """A record with these errors; MAE is half of them, the reference's MSE is 0.5 everywhere."""
    errors, title = np.array(mse, dtype=float), find_method(method).title
    usual = {"optimiser": "adam", "learning_rate": 0.001, "momentum": 0.0, "selection": 1.0}
    return Record(
        key=f"{method}{seed}",
        method=method,
        title=title,
        version="0",
        settings={
            "seed": seed,
            "data": {"clients": 2},
            "training": {**usual, **training},
            "options": asdict(find_method(method).Options()),
        },
        data={"name": "made up", "synthetic": False, "periods": [40, 11, 11]},
        clients=tuple(clients) or tuple(f"c{i}" for i in range(len(mse))),
        std=np.full(len(mse), 2.0),
        mse={title: errors, "ridge": np.full(len(mse), 0.5)},
        mae={title: errors / 2, "ridge": np.full(len(mse), 0.5)},
        history={"clients": np.full(10, len(mse)), "numbers_up": np.full(10, 5.0),
                 "numbers_down": np.full(10, 7.0)},
        kept_model="last",
        sent={"numbers_up": 5, "numbers_down": 7, "total_up": 50.0 * len(mse),
              "total_down": 70.0 * len(mse)},
        seconds=1.0,
    )  # fmt: skip
