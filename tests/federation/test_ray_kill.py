"""A driver that is killed, and the run that continues on Ray to the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from fuels.data.writers import write_panel
from helpers.panels import make_panel

FUELS = str(Path(sys.executable).with_name("fuels"))
RUN = ["--preset", "paper", "--engine", "ray", "--sites", "2", "--threads", "2", "--no-plots",
       "--rounds", "8", "--set", "windows.split=8/2/2", "--set", "model.hidden=16"]  # fmt: skip
SAME = ("history.safetensors", "models.safetensors", "server.safetensors", "forecasts.parquet",
        "errors.parquet", "metrics.jsonl")  # fmt: skip


def lines(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.federation
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_killed_driver_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """Its actors end with it; the states that they wrote are enough."""
    write_panel(make_panel(12), tmp_path / "panel.npz")
    start = [FUELS, "run", "--data", str(tmp_path / "panel.npz"), *RUN, "--out"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([*start, str(whole)], check=True, capture_output=True, timeout=600)
    driver = subprocess.Popen([*start, str(cut)], stdout=subprocess.DEVNULL)
    try:
        while lines(cut) < 2 and driver.poll() is None:
            time.sleep(0.02)
    finally:
        driver.kill()
    assert driver.wait(60) == -signal.SIGKILL and 2 <= lines(cut) < 8
    resume = [FUELS, "run", "--resume", str(cut), "--no-plots"]
    subprocess.run(resume, check=True, capture_output=True, timeout=600)
    for name in SAME:
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
