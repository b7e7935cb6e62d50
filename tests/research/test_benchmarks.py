"""Benchmarks that read run folders: what they refuse, and what they take."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from fuels.config import Engine, Settings, merge
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.research.study.store import Store, ensure_run
from fuels.runs.build import load_dataset
from fuels.runs.run import run
from fuels.storage.run_folder import RunFolder
from helpers.panels import make_panel
from helpers.records import record

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))  # they import each other, as when run as scripts


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def imports(path: Path) -> list[tuple[str, str]]:
    """(module, name) of everything that a script imports from fuels, also inside functions."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
    own = [node for node in nodes if (node.module or "").split(".")[0] == "fuels"]
    return [(str(node.module), alias.name) for node in own for alias in node.names]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(path: Path) -> None:
    for module, name in imports(path):
        found = hasattr(importlib.import_module(module), name)
        assert found or importlib.util.find_spec(f"{module}.{name}"), f"{module}.{name}"


def settings(path: Path) -> Settings:
    return merge(
        Settings(),
        {
            "data": {"source": str(path)},
            "windows": {"split": "6/0/6"},
            "model": {"hidden": 4},
            "training": {"rounds": 1},
        },
        "test",
    )


def test_windows_of_an_unfinished_run_are_refused_in_one_sentence(tmp_path: Path) -> None:
    RunFolder(tmp_path / "r").begin(Settings(), Engine())
    words = [sys.executable, str(FOLDER / "windows.py"), str(tmp_path / "r")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("windows.py: ") and len(done.stderr.splitlines()) == 1
    assert "not finished" in done.stderr


def test_the_mixture_benchmark_reads_what_a_run_forecast(tmp_path: Path) -> None:
    mixture = benchmark("mixture")
    path = tmp_path / "p.parquet"
    write_panel(make_panel(clients=3), path)
    chosen = settings(path)
    folder = RunFolder(tmp_path / "r")
    with pytest.raises(FuelsError, match="no finished run is here"):
        mixture.forecasts_of(folder.path, load_dataset(chosen))
    outcome = run(chosen, Engine(threads=1), folder, plots=False)
    said = mixture.forecasts_of(folder.path, outcome.dataset)
    np.testing.assert_allclose(said, outcome.forecasts["FUELS"], rtol=1e-5, atol=1e-5)
    other = load_dataset(merge(chosen, {"windows": {"split": "7/0/5"}}, "test"))
    with pytest.raises(FuelsError, match="3 clients and 120 test steps"):
        mixture.forecasts_of(folder.path, other)
    folder.mixture.touch()
    with pytest.raises(FuelsError, match="a mixture already"):
        mixture.forecasts_of(folder.path, outcome.dataset)


def test_the_same_mistake_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_panel(make_panel(clients=3), path)
    outcome = run(settings(path), Engine(threads=1), RunFolder(tmp_path / "r"), plots=False)
    method, mse, mean, client, hour = benchmark("bias").measured(tmp_path / "r")
    assert method == "fuels" and mse == pytest.approx(outcome.scores["FUELS"].means()["mse"])
    first, last = outcome.dataset.split.part("test")
    error = outcome.forecasts["FUELS"] - outcome.dataset.series[:, first:last]
    assert mean == pytest.approx(float(error.mean()), abs=1e-5)
    assert client == pytest.approx(float((error.mean(axis=1) ** 2).mean()) / mse, abs=1e-4)
    by_hour = error.reshape(3, -1, 24).mean(axis=1)
    assert hour == pytest.approx(float((by_hour**2).mean()) / mse, abs=1e-4)


def records(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FOLDER / "records.py", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_records_are_packed_and_retrained_from_their_own_settings(tmp_path: Path) -> None:
    path = tmp_path / "data" / "p.parquet"
    path.parent.mkdir()
    write_panel(make_panel(clients=3), path)
    record = ensure_run(settings(path), Engine(threads=1), Store(tmp_path / "first")).record
    archive = tmp_path / "records.jsonl.xz"
    packed = records(archive, "--pack", tmp_path / "first")
    assert packed.stdout == "1 added, 0 replaced, 0 already there\n", packed.stderr
    done = records(archive, "--data", path.parent, "--only", record.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("| 0.0e+00 | 0.0e+00 | none |")
    record.mse["FUELS"][0] += 1
    store = Store(tmp_path / "again")
    apart, line = benchmark("records").compare(record, path.parent, store)
    assert apart == pytest.approx(1 / 3, abs=1e-5) and "| 1.0e+00 |" in line
    path.unlink()
    write_panel(make_panel(clients=2), path)
    with pytest.raises(FuelsError, match="have changed"):
        benchmark("records").compare(record, path.parent, Store(tmp_path / "other"))


def test_fuels_is_paired_with_solo_on_the_same_data_and_seeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    solo = benchmark("solo")
    plain = [record(method, seed, [0.1 * (i + 1) for i in range(7)]) for method in ("fuels", "solo")
             for seed in (1, 0)]  # fmt: skip
    for each in plain:
        each.settings["data"] = {"newcomers": ""}
    better = record("fuels", 0, [0.05 * (i + 1) for i in range(7)])
    better.settings["options"] = {**better.settings["options"], "tau": 0.5}
    other = record("solo", 0, [1.0] * 7, [f"d{i}" for i in range(7)])  # other clients: no partner
    for each in (better, other):
        each.settings["data"] = {"newcomers": ""}
    found = solo.pairs([*plain, better, other])
    assert [pair.name.rpartition(": ")[2] for pair in found] == ["as in the paper", "tau=0.5"]
    assert [[r.settings["seed"] for r in pair.fuels] for pair in found] == [[0, 1], [0]]
    solo.print_table([*plain, better, other])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 4 and "| +0.0 % |" in rows[2] and "| – |" in rows[2]
    # All seven clients better: p = 2 / 2^7.
    assert "| -50.0 % | 0.2000 | 0.4000 |" in rows[3] and rows[3].endswith("100 % of 7 | 0.016 |")


def test_resort_days_change_a_third_of_the_clients_after_training() -> None:
    solo = benchmark("solo")
    panel = make_panel(clients=9, days=45)
    grown = solo.resort_days(panel)
    ratio = grown.values / panel.values
    assert np.nanmax(np.abs(ratio[: 40 * 24] - 1)) == 0
    late = np.nanmean(ratio[40 * 24 :], axis=0)
    assert sorted(late.tolist()) == [1.0] * 6 + [4.0] * 3
    np.testing.assert_array_equal(solo.resort_days(panel).values, grown.values)


def test_the_study_trains_what_is_missing_and_can_be_divided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    solo = benchmark("solo")
    write_panel(make_panel(clients=7, days=44), tmp_path / "p.npz")
    words = f"solo.py --run {tmp_path}/p.npz --store {tmp_path}/store --seeds 1 --clients 7"
    words += " --rounds 1 --split 40/0/4 --divide-test 2,2 --threads 1"
    monkeypatch.setattr(sys, "argv", words.split())
    monkeypatch.setattr(solo, "VARIANTS", ({"shift": 0.0},))
    monkeypatch.setattr(
        solo, "merge", lambda s, c, p: merge(merge(s, {"model": {"hidden": 2}}, p), c, p)
    )
    solo.main()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(": ")[0].rpartition(", ")[2] for row in rows] == [
        "test periods 1-2", "test periods 3-4"] * 2  # fmt: skip
    assert sum("p_resort" in row for row in rows) == 2


def test_peers_are_compared_in_each_clients_own_unit(tmp_path: Path) -> None:
    peers = benchmark("peers")
    hours = (peers.TRAIN + sum(peers.PARTS)) * peers.DAY - 1  # the last day lacks an hour
    panel = make_panel(clients=2, days=1)
    data = peers.Data(
        replace(panel, values=np.zeros((hours, 2))), {"c0": 1.0, "c1": 10.0}, tmp_path / "panel"
    )
    assert data.windows(1, 1) == hours - peers.TRAIN * 24
    assert data.windows(24, 24) == sum(peers.PARTS) - 1
    tested = data.panel.times[peers.TRAIN * 24 :].astype("datetime64[us]")
    y, off = np.zeros(2 * len(tested)), np.repeat([3.0, 30.0], len(tested))
    table = pl.DataFrame(
        {"unique_id": np.repeat(["c0", "c1"], len(tested)), "ds": np.tile(tested, 2), "y": y}
    ).with_columns(pl.Series("A", off), pl.Series("A-lo-80", y - 1), pl.Series("A-hi-80", y + 1))
    found = peers.errors(table, "A", data.spread)
    assert found["mse"] == pytest.approx(9.0) and found["coverage-80"] == 1.0
    assert found["pinball"] == pytest.approx(0.1 * (1 + 0.1) / 2)  # bounds off by 1, and by 0.1
    lengths = [len(peers.part(table, data, i)) for i in range(2)]
    assert lengths == [2 * 11 * 24, 2 * (11 * 24 - 1)] and sum(lengths) == len(table)


def test_peers_go_on_where_they_were_and_with_the_same_data_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, folder = benchmark("peers"), tmp_path / "out"
    folder.mkdir()
    for seed in (1, 2):
        write_panel(make_panel(clients=2, days=62, seed=seed), tmp_path / f"{seed}.parquet")
    data = peers.read(tmp_path / "1.parquet", 2, folder)
    calls = []

    def run_ours(data: object, horizon: int, out: Path) -> object:
        calls.append(horizon)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return peers.Cost(1.5, 200.0)

    monkeypatch.setattr(peers, "run_ours", run_ours)
    assert peers.cost_of("fuels", None, data, 1, folder) == peers.Cost(1.5, 200.0)
    with pytest.raises(KeyboardInterrupt):
        peers.cost_of("fuels", None, data, 24, folder)
    again = peers.read(tmp_path / "1.parquet", 2, folder)
    found = [peers.cost_of("fuels", None, again, horizon, folder) for horizon in (1, 24)]
    assert found == [peers.Cost(1.5, 200.0)] * 2 and calls == [1, 24, 24]
    assert peers.cost_of("MSTL", None, again, 1, folder) is None  # without its environment
    with pytest.raises(FuelsError, match=r"results for other data than .*2\.parquet"):
        peers.read(tmp_path / "2.parquet", 2, folder)
