"""What people would use instead, in an environment without fuels: called by peers.py.

    python peers_rivals.py NAME --data panel.parquet --train 960 --horizon 24 --windows 21 \
        --step 24 --out forecasts.parquet

The first origin follows `train` steps. All rivals forecast through the `cross_validation` of their
library, which shows a model only the values before each origin. One thread each.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

LEVELS = [80, 95]
DAY, WEEK = 24, 168  # the data are hourly
# Of LightGBM: every hour of a day, the same hour of every day of a week, and the hour before it.
LAGS = [*range(1, DAY + 1), *range(2 * DAY, WEEK + 1, DAY), WEEK + 1]
TREES = (100, 300, 1000)
CHECKED_DAYS = 8  # the last days of training: they choose the trees and calibrate the intervals


def statistical(name: str, frame: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """AutoETS or MSTL: parameters estimated once, states updated with every value."""
    from statsforecast import StatsForecast
    from statsforecast.models import MSTL, AutoETS

    model = AutoETS(season_length=DAY) if name == "AutoETS" else MSTL(season_length=[DAY, WEEK])
    return StatsForecast([model], freq="h", n_jobs=1).cross_validation(
        df=frame, level=LEVELS, refit=False, **windows(options)
    )


def boosted(frame: pd.DataFrame, options: argparse.Namespace, refit: int | bool) -> pd.DataFrame:
    """mlforecast with one LightGBM model of all clients, and its conformal intervals.

    At each origin after a fit, mlforecast calibrates them again, on as many windows one step apart.
    """
    from mlforecast.utils import PredictionIntervals

    known = frame[frame["ds"] < sorted(frame["ds"].unique())[options.train]]
    trees = chosen_trees(known, options.horizon)
    print(f"{trees} trees, chosen on the last {CHECKED_DAYS} days of training", flush=True)
    return forecaster(trees).cross_validation(
        frame,
        refit=refit,
        level=LEVELS,
        prediction_intervals=PredictionIntervals(
            CHECKED_DAYS * DAY // options.horizon, options.horizon
        ),
        **windows(options),
    )


def forecaster(trees: int) -> Any:
    from lightgbm import LGBMRegressor
    from mlforecast import MLForecast
    from mlforecast.target_transforms import LocalStandardScaler

    model = LGBMRegressor(
        n_estimators=trees, learning_rate=0.05, n_jobs=1, verbosity=-1, random_state=0
    )
    return MLForecast(
        models={"LightGBM": model},
        freq="h",
        lags=LAGS,
        date_features=["hour", "dayofweek"],
        target_transforms=[LocalStandardScaler()],
    )


def chosen_trees(known: pd.DataFrame, horizon: int) -> int:
    """The number of trees with the lowest error on the last days of training."""
    spread = known.groupby("unique_id")["y"].std()

    def error(trees: int) -> float:
        step = max(horizon, 5)  # every fifth hour meets all hours of a day
        made = forecaster(trees).cross_validation(
            known, CHECKED_DAYS * DAY // step, horizon, step_size=step, refit=False
        )
        scaled = (made["LightGBM"] - made["y"]) / made["unique_id"].map(spread).to_numpy()
        return float(np.mean(scaled**2))

    return min(TREES, key=error)


def windows(options: argparse.Namespace) -> dict[str, int]:
    return {"h": options.horizon, "n_windows": options.windows, "step_size": options.step}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", choices=("AutoETS", "MSTL", "LightGBM", "LightGBM-weekly"))
    parser.add_argument("--data", type=Path, required=True)
    for name in ("train", "horizon", "windows", "step"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    frame = pd.read_parquet(options.data)
    frame["ds"] = frame["ds"].astype("datetime64[ns]")
    last = options.train + options.step * (options.windows - 1) + options.horizon
    frame = frame[frame["ds"] < frame["ds"].min() + pd.Timedelta(hours=last)]
    if options.name in ("AutoETS", "MSTL"):
        made = statistical(options.name, frame, options)
    else:
        weekly = options.name.endswith("weekly")
        made = boosted(frame, options, WEEK // options.step if weekly else False)
    model = options.name.partition("-")[0]
    made.columns = [column.replace(model, options.name, 1) for column in made.columns]
    made.to_parquet(options.out, index=False)


if __name__ == "__main__":
    main()
