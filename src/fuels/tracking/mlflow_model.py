"""What MLflow loads: a forecaster from the files of a run, without pickle.

model = mlflow.pyfunc.load_model("runs:/.../model")
model.predict(frame, params={"h": 24})   # frame: unique_id, ds, y, continuing the training data
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class ForecastModel:
    """`predict` of a Forecaster under MLflow's interface."""

    def __init__(self, path: Path) -> None:
        from fuels.forecasting.forecaster import Forecaster

        self.forecaster = Forecaster.load(path)

    def predict(self, frame: Any, params: dict[str, Any] | None = None) -> Any:
        """The next values after a long table of the newest ones, `h` (default 1) steps ahead, with
        intervals for `level`, if given."""
        chosen = params or {}
        level = [float(each) for each in chosen.get("level", [])]
        return self.forecaster.predict(int(chosen.get("h", 1)), frame=frame, level=level or None)


def _load_pyfunc(path: str) -> ForecastModel:
    """Called by MLflow."""
    return ForecastModel(Path(path))
