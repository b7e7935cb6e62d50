"""Runs in TensorBoard and MLflow: what they show is what the run folder has."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fuels import Forecaster
from helpers.commands import SMALL, Fuels


def lines(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_shows_every_round(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, _, err = fuels("run", "--data", csv, "--out", "r", "--track", "tensorboard", *SMALL)
    assert code == 0, err
    shown = EventAccumulator(str(tmp_path / "r" / "tensorboard"))
    shown.Reload()
    known = lines("r")
    for tag, name in (("loss/prediction", "loss_prediction"), ("val/mse", "val_mse")):
        assert [each.step for each in shown.Scalars(tag)] == [1, 2]
        values = [each.value for each in shown.Scalars(tag)]
        assert values == pytest.approx([line[name] for line in known], rel=1e-6)
    (final,) = shown.Scalars("test/last value/mse")
    summary = json.loads(Path("r/summary.json").read_text())
    assert final.value == pytest.approx(summary["scores"]["last value"]["mse"], rel=1e-6)


def test_mlflow_has_settings_rounds_and_a_model_without_pickle(
    fuels: Fuels, csv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    uri = f"sqlite:///{tmp_path / 'tracked.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    code, _, err = fuels("run", "--data", csv, "--out", "r", "--track", "mlflow", *SMALL)
    assert code == 0, err
    client = mlflow.MlflowClient()
    run = client.get_run(Path("r/mlflow-run.txt").read_text().strip())
    assert run.info.status == "FINISHED" and run.info.run_name == "r"
    assert run.data.params["model.hidden"] == "4" and run.data.params["method"] == "fuels"
    history = client.get_metric_history(run.info.run_id, "loss_prediction")
    assert [each.value for each in history] == [line["loss_prediction"] for line in lines("r")]
    summary = json.loads(Path("r/summary.json").read_text())
    assert run.data.metrics["last value/mse"] == summary["scores"]["last value"]["mse"]

    stored = Path(client.download_artifacts(run.info.run_id, "model"))
    assert not list(stored.rglob("*.pkl")) and list(stored.rglob("models.safetensors"))
    frame = pd.read_csv(csv, parse_dates=["ds"])
    made = (
        importlib.import_module("mlflow.pyfunc")
        .load_model(str(stored))
        .predict(frame, params={"h": 2, "level": [80.0]})
    )
    expected = Forecaster.load("r").predict(2, frame=frame, level=[80])
    assert list(made.columns) == list(expected.columns) and len(made) == 8
    np.testing.assert_array_equal(made["FUELS"], expected["FUELS"])


def test_unknown_trackers_are_refused(fuels: Fuels, csv: str) -> None:
    code, _, err = fuels("run", "--data", csv, "--out", "r", "--track", "tensorbord", *SMALL)
    assert code == 1 and "did you mean tensorboard?" in err and not Path("r").exists()


def test_a_missing_package_is_named(
    fuels: Fuels, csv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    code, _, err = fuels("run", "--data", csv, "--out", "r", "--track", "mlflow", *SMALL)
    assert code == 1 and 'pip install "fuels-forecast[mlflow]"' in err and not Path("r").exists()
