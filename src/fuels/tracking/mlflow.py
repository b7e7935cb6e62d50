"""A run in MLflow: its settings, every round, the errors on the test part, and the model.

Where MLflow keeps it is MLflow's setting (MLFLOW_TRACKING_URI). The model has the flavour
`python_function` without pickle: it is the run's own files, read by mlflow_model.py.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuels.config import Settings, to_dict
from fuels.data.files import first_line
from fuels.errors import FuelsError
from fuels.federation.loop import Round
from fuels.storage.config_file import flat
from fuels.tracking.trackers import figures, final_figures
from fuels.version import DISTRIBUTION, __version__, optional

RUN_ID = "mlflow-run.txt"  # in the run folder: a resumed run continues it
LOADER = "fuels.tracking.mlflow_model"
ARTIFACTS = ("config.toml", "summary.json")
MODEL = ("models.safetensors", "mixture.safetensors", "config.toml", "summary.json")


class MLflow:
    """Begins or continues an MLflow run with the first round."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.mlflow = optional("mlflow", "the package mlflow", "mlflow", "--track mlflow")
        self.settings, self.folder = settings, folder
        self._client: Any = None
        self._run = ""

    def on_round(self, done: Round) -> None:
        self._log(figures(done), done.number)

    def finish(self, summary: Mapping[str, Any], folder: Path) -> None:
        names = {name: _name(name) for name in final_figures(summary)}
        values = {names[name]: value for name, value in final_figures(summary).items()}
        self._log(values, summary["rounds"])
        for name in ARTIFACTS:
            self._client.log_artifact(self._run, str(folder / name))
        with tempfile.TemporaryDirectory() as kept:
            save_model(folder, Path(kept) / "model")
            self._client.log_artifacts(self._run, str(Path(kept) / "model"), "model")
        self._client.set_terminated(self._run)

    def close(self) -> None:
        """An unfinished run stays open in MLflow; resuming continues it."""

    def _log(self, values: Mapping[str, float], step: int) -> None:
        try:
            if self._client is None:
                self._begin()
            for name, value in values.items():
                self._client.log_metric(self._run, name, value, step=step)
        except (self.mlflow.exceptions.MlflowException, OSError) as error:
            raise FuelsError(f"--track mlflow: {first_line(error)}") from None

    def _begin(self) -> None:
        self._client = self.mlflow.MlflowClient()
        known = self.folder / RUN_ID
        if known.is_file():
            self._run = known.read_text().strip()
            return
        experiment = self.mlflow.set_experiment("fuels")
        run = self._client.create_run(experiment.experiment_id, run_name=self.folder.name)
        self._run = run.info.run_id
        for name, value in flat(to_dict(self.settings)).items():
            self._client.log_param(self._run, name, value)
        known.write_text(f"{self._run}\n")


def save_model(run: Path, path: Path) -> None:
    """Write a finished run as an MLflow model: a folder that `mlflow.pyfunc.load_model` reads."""
    pyfunc, models = (importlib.import_module(f"mlflow.{name}") for name in ("pyfunc", "models"))
    types = importlib.import_module("mlflow.types")
    parameters = types.ParamSchema(
        [
            types.ParamSpec("h", types.DataType.integer, 1),
            types.ParamSpec("level", types.DataType.double, [], shape=(-1,)),
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in MODEL:
            if (run / name).is_file():
                shutil.copy2(run / name, folder)
        pyfunc.save_model(
            path=str(path),
            loader_module=LOADER,
            data_path=folder,
            signature=models.ModelSignature(params=parameters),
            pip_requirements=[f"{DISTRIBUTION}=={__version__}"],
        )


def _name(name: str) -> str:
    """A name that MLflow accepts: it has no brackets and no plus sign."""
    return "".join(c if c.isalnum() or c in " _-./" else "-" for c in name)
