"""Small data that every test can use, and the folder of real data where it is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from fuels.cli import main
from fuels.config import Engine
from fuels.data.panel import Panel
from fuels.data.writers import write_panel
from fuels.forecasting.table import long_frame
from fuels.kernels.dispatch import use_kernels
from helpers.commands import Fuels
from helpers.live import make_run
from helpers.panels import make_panel

# The same generated cases each time: a test depends on the change, not on the draw.
# Others are tried with `pytest --hypothesis-seed=random`.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def every_round_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a disk is so slow that rounds would be left out (journal.py)."""
    monkeypatch.setattr("fuels.storage.journal.QUICK", 60.0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of seven clients, in a folder of its own."""
    path = tmp_path / "here" / "panel.npz"
    path.parent.mkdir()
    write_panel(make_panel(clients=7), path)
    return path


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real datasets, named by the environment."""
    folder = os.environ.get("FUELS_DATA")
    if not folder:
        pytest.skip("FUELS_DATA is not set: it names the folder with the real datasets")
    return Path(folder)


@pytest.fixture
def panel() -> Panel:
    return make_panel()


@pytest.fixture
def fuels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Fuels:
    """Runs a command line in an empty folder; gives exit code, output and error output."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fuels", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def csv(tmp_path: Path) -> str:
    long_frame(make_panel(clients=4, days=14)).write_csv(tmp_path / "traffic.csv")
    return "traffic.csv"


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six clients, to be copied, before the hours of helpers/live.py."""
    return make_run(tmp_path_factory.mktemp("small"))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels are demanded: `auto` would take the plain path where they do not load."""
    monkeypatch.setattr("helpers.small_federation.Engine", partial(Engine, kernels="fused"))
    use_kernels("fused")
    yield
    use_kernels("auto")
