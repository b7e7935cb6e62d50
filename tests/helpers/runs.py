"""Small runs, and what they leave in their folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.evaluation.outcome import Outcome
from fuels.runs.run import run
from fuels.storage.config_file import read_config
from fuels.storage.run_folder import RunFolder

RESULTS = ("metrics.jsonl", "forecasts.parquet", "models.safetensors", "server.safetensors")


def small(preset: str = "paper", **changes: object) -> Settings:
    """A small run; of preset best with all that it has, several steps ahead included."""
    base = merge(Settings(), {"preset": preset, **PRESETS[preset]}, "test")
    size: dict[str, dict[str, Any]] = {
        "windows": {"split": "7/2/3"},
        "training": {"rounds": 4},
        "model": {"hidden": 4},
    }
    if preset == "best":
        size["windows"]["horizon"] = 2
    return merge(merge(base, size, "test"), changes, "test")


def do_run(
    folder: Path, settings: Settings, panel: Panel, threads: int = 1, **more: Any
) -> Outcome:
    engine, target = Engine(threads=threads), RunFolder(folder)
    return run(settings, engine, target, panel=panel, plots=False, **more)


def results(folder: Path) -> dict[str, bytes]:
    """All that a run leaves and that does not depend on the clock."""
    mixed = read_config(folder / "config.toml")[0].mixture.on
    names = (*RESULTS, "mixture.safetensors", "weights.parquet") if mixed else RESULTS
    summary = json.loads((folder / "summary.json").read_text())
    ahead = json.dumps([summary["scores"], summary.get("steps_ahead"), summary.get("mixture")])
    return {name: (folder / name).read_bytes() for name in names} | {"scores": ahead.encode()}
