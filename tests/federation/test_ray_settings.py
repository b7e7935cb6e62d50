"""What a run with Ray refuses, without Ray running."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fuels.config import Engine, Settings, check_engine
from fuels.errors import FuelsError
from fuels.federation.ray import look_for, split_clients
from fuels.runs.build import build
from helpers.panels import make_panel


@pytest.mark.parametrize(
    ("clients", "sites", "bounds"),
    [
        (20, 1, [(0, 20)]),
        (20, 2, [(0, 10), (10, 20)]),
        (20, 3, [(0, 6), (6, 13), (13, 20)]),
        (3, 3, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_shares_are_contiguous_and_about_equal(
    clients: int, sites: int, bounds: list[tuple[int, int]]
) -> None:
    assert [(share.start, share.stop) for share in split_clients(clients, sites)] == bounds


@pytest.mark.parametrize("sites", [0, 4])
def test_a_number_of_sites_that_cannot_be_is_refused(sites: int) -> None:
    with pytest.raises(FuelsError, match=r"engine.sites must be from 1 to 3"):
        split_clients(3, sites)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (Engine(transport="rya"), "unknown engine rya; did you mean ray"),
        (Engine(sites=2), "need --engine ray"),
        (Engine(address="host:6379"), "need --engine ray"),
        (Engine(transport="ray", device="cuda"), "trains on CPUs"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(engine: Engine, message: str) -> None:
    with pytest.raises(FuelsError, match=message):
        check_engine(engine)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "--address 127.0.0.1:1: no Ray cluster answers"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
        ("ray://127.0.0.1:10001", "--address must be the HOST:PORT"),
        ("6379", "--address must be the HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, message: str) -> None:
    with pytest.raises(FuelsError, match=message):
        look_for(address)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        FuelsError, match=r'--engine ray: Ray is not installed: pip install "fuels-forecast\[ray\]"'
    ):
        build(Settings(), Engine(threads=2, transport="ray", sites=2), make_panel(20))


def test_the_local_engine_does_not_import_ray() -> None:
    code = "import sys, fuels.runs.run, fuels.cli.run; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
