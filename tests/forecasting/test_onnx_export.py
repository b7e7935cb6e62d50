"""ONNX files of personal models: the same forecasts as PyTorch, in another runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from fuels import Forecaster, FuelsError
from fuels.data.calendar import weekday
from fuels.data.inputs import EVERYONE, with_inputs
from fuels.experts.personal_model import forecasts_ahead, history_for
from fuels.forecasting.onnx_export import export_onnx, file_names
from fuels.forecasting.table import long_frame
from fuels.storage.models import InputWeights, PersonalModels
from helpers.commands import Fuels
from helpers.panels import make_panel

PANEL = make_panel(clients=3, days=16)
ROWS = 60  # the last steps of the panel, weekend included


def trained(preset: str, **settings: object) -> PersonalModels:
    """Models after two rounds, with their heads' calendar weights drawn: two rounds hardly move
    them."""
    sections = {"model": {"hidden": 4}, **settings}
    forecaster = Forecaster(preset=preset, rounds=2, threads=1, settings=sections)
    models = forecaster.fit(long_frame(PANEL)).models
    assert models is not None
    drawn = torch.randn(models.parts["decoder"].shape, generator=torch.Generator().manual_seed(1))
    return replace(models, unit="MB", parts={**models.parts, "decoder": 0.3 * drawn})


def run_onnx(
    path: Path, models: PersonalModels, client: str, **more: np.ndarray
) -> tuple[np.ndarray, dict[str, str]]:
    """Forecasts [row, H] made before each of the last ROWS steps, from values in their unit."""
    session = onnxruntime.InferenceSession(path.read_bytes())
    facts = session.get_modelmeta().custom_metadata_map
    lags = [int(lag) for lag in facts["lags"].split(",")]
    values = PANEL.values[:, PANEL.ids.index(client)]
    first = PANEL.length - ROWS
    steps = np.arange(first, PANEL.length)
    ahead = steps[:, None] + np.arange(int(facts["steps_ahead"]))
    times = PANEL.start + ahead * PANEL.step
    given = {
        "window": np.stack([values[steps - lag] for lag in lags], axis=1).astype(np.float32),
        "phase": steps % int(facts["period"]),
        "free": models.calendar.free(times.ravel()).reshape(times.shape).astype(np.int64),
        "weekday": weekday(times.ravel()).reshape(times.shape),
        **more,
    }
    names = {each.name for each in session.get_inputs()}
    (made,) = session.run(None, {name: array for name, array in given.items() if name in names})
    return made, facts


@pytest.mark.parametrize(
    ("preset", "settings", "inputs"),
    [
        ("paper", {}, 1),
        ("best", {"windows": {"horizon": 3}}, 3),
        ("paper", {"model": {"hidden": 4, "head": "sum"}}, 1),
        ("paper", {"windows": {"calendar": ["weekday", "free"], "horizon": 2}}, 4),
    ],
)
def test_forecasts_equal_those_of_pytorch(
    tmp_path: Path, preset: str, settings: dict[str, object], inputs: int
) -> None:
    models = trained(preset, **settings)
    first, horizon = PANEL.length - ROWS, models.sample.horizon
    expected = forecasts_ahead(models, history_for(models, PANEL), first, PANEL.length, horizon)
    for i, client in enumerate(models.ids):
        path = tmp_path / f"{i}.onnx"
        export_onnx(models, client, path)
        made, facts = run_onnx(path, models, client)
        scaled = (made - models.mean[i]) / models.std[i]
        assert made.shape == (ROWS, horizon)
        np.testing.assert_allclose(scaled, expected[i], rtol=0, atol=1e-5)
        assert facts["client"] == client and facts["unit"] == "MB"
        assert float(facts["std"]) == models.std[i] and float(facts["mean"]) == models.mean[i]
    assert len(onnxruntime.InferenceSession(path.read_bytes()).get_inputs()) == inputs


@pytest.mark.parametrize("preset", ["paper", "best"])
def test_external_inputs_are_part_of_the_file(tmp_path: Path, preset: str) -> None:
    """Also where one is missing, beyond its range, or has no values at all."""
    draw = np.random.default_rng(3).normal(size=(PANEL.length + 3, 4))
    draw[-40:-30, 0], draw[-20, 1], draw[:, 2] = np.nan, 1e6, np.nan
    made = {
        name: replace(PANEL, values=draw[:, [i]], ids=EVERYONE) for i, name in enumerate("abcd")
    }
    panel = with_inputs(PANEL, made)
    models = trained(preset, windows={"horizon": 3})
    history = history_for(models, panel)
    drawn = np.random.default_rng(4).normal(size=(len(models.ids), 3, 12))
    scales = history.input_scales(tuple("abcd"), PANEL.length)
    models = replace(models, inputs=InputWeights(tuple("abcd"), scales, drawn))
    first = PANEL.length - ROWS
    expected = forecasts_ahead(models, history, first, PANEL.length, 3)
    target = np.arange(first, PANEL.length)[:, None] + np.arange(3)
    newest, season = target - np.arange(1, 4), target - 24
    given = np.stack([draw[at] for at in (target, newest, season)], axis=3)
    export_onnx(models, "c1", tmp_path / "x.onnx")
    found, facts = run_onnx(tmp_path / "x.onnx", models, "c1", inputs=given.astype(np.float32))
    assert facts["inputs"] == "a,b,c,d"
    scaled = (found - models.mean[1]) / models.std[1]
    np.testing.assert_allclose(scaled, expected[1], rtol=0, atol=1e-5)


def test_other_encoders_are_refused(tmp_path: Path) -> None:
    models = trained("paper", model={"hidden": 4, "encoder": "linear"})
    with pytest.raises(FuelsError, match="client c0: only models with the encoder gru"):
        export_onnx(models, "c0", tmp_path / "x.onnx")


def test_every_client_has_its_own_file_name() -> None:
    names = file_names(["a/b", "a b", "A-B", "..", "a-b-2"])
    assert names["a/b"] == "a-b.onnx" and names[".."] == "client.onnx"
    assert len({name.lower() for name in names.values()}) == 5


def test_export_command(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    words = ("--set", "model.hidden=4", "--rounds", "1", "--no-plots", "--threads", "1")
    assert fuels("run", "--data", csv, "--preset", "paper", "--out", "r", *words)[0] == 0
    code, _, err = fuels("export", "r", "--out", "o")
    assert code == 0 and "4 models in o" in err and len(list(Path("o").glob("*.onnx"))) == 4
    code, _, err = fuels("export", "r", "--out", "o")
    assert code == 1 and "already exists; choose another folder" in err
    code, _, err = fuels("export", "r", "--out", "p", "--ids", "nobody")
    assert code == 1 and "no client nobody" in err and not Path("p").exists()
