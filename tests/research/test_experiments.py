"""Experiments of training runs: files, figures that can be checked by hand, and wrong input."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import fuels
from fuels.cli.experiment import experiment_command
from fuels.config import Engine, Settings, merge
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.methods.base import Method
from fuels.methods.registry import METHODS
from fuels.report.tables import Column, Table
from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.communication import reached
from fuels.research.experiments.predictions import stretches
from fuels.research.experiments.registry import EXPERIMENTS as NAMES
from fuels.research.experiments.registry import find_experiment
from fuels.research.study.store import RunResult, Store, ensure_run
from fuels.runs.build import method_for
from fuels.runs.settings import resolve
from helpers.panels import make_panel
from helpers.records import record

TRAINED = {
    "performance": ["performance.png", "performance-panel.csv", "performance-paper.csv"],
    "predictions": ["predictions.png", "predictions-cdf.png"],
    "communication": ["communication.png"],
    "ablation": ["ablation.png", "ablation-paper.csv"],
    "hyperparameters": ["hyperparameters.png"],
    "prototype-size": ["prototype-size.png"],
    "privacy": ["privacy.png"],
    "metr-la": ["metr-la.png"],
}
OWN = {
    "hyperparameters": ["beta=50,90", "tau=0.02", "rho=5"],
    "prototype-size": ["hidden=2,4"],
    "privacy": ["scales=0.5"],
}


def run_cli(*words: str) -> Any:
    app = typer.Typer()
    app.command()(experiment_command)
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data that all experiments share, and with them their runs."""
    folder = tmp_path_factory.mktemp("experiments")
    write_panel(make_panel(clients=4, days=40, start="2012-03-01"), folder / "panel.npz")
    return folder


@pytest.mark.parametrize("name", list(TRAINED))
def test_an_experiment_writes_its_page_tables_and_figures(
    name: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shared)
    monkeypatch.setattr(sys, "argv", ["fuels", "experiment", name, "--data", str(shared / "p.npz")])
    words = [name, "--data", str(shared / "panel.npz"), "--rounds", "2", "--clients", "3"]
    words += ["--set", "model.hidden=4", "--threads", "1"]
    if "fedda" in find_experiment(name).methods:
        words += ["--set", "options.warm_epochs=2"]
    words += ["--set", "data.resample="] if name != "metr-la" else ["--option", "step=1h"]
    for option in OWN.get(name, []):
        words += ["--option", option]
    trained, whole = set(), Context.runs

    def noting(self: Context, wanted: Sequence[Settings], **how: Any) -> list[RunResult]:
        trained.update(settings.method for settings in wanted)
        return whole(self, wanted, **how)

    monkeypatch.setattr(Context, "runs", noting)
    result = run_cli(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    assert trained == set(find_experiment(name).methods)
    out = shared / "runs" / "experiments" / name
    page = (out / f"{name}.md").read_text()
    assert page.startswith(f"# {find_experiment(name).title}")
    assert f"`fuels experiment {name} --data p.npz`" in page  # a page names no folder
    assert str(shared) not in page and "3 clients, 2 rounds, seed 0" in page
    for file in TRAINED[name]:
        assert (out / file).stat().st_size > 300
        assert f"({file})" in page or file.endswith(".csv")
    with (out / f"{name}.csv").open() as file_:
        rows = {row[0]: row for row in csv.reader(file_)}
    if name in ("ablation", "hyperparameters", "privacy", "prototype-size"):
        assert "Solo" in rows and "What federation is worth: the MSE of" in page
    if name == "ablation":
        periods = 26 - 3
        assert rows["w/o p-aware"][-1] == str(periods * int(rows["FUELS"][-1]))
    if name == "prototype-size":
        assert [rows[size][-1] for size in ("2", "4")] == ["96", "192"]
    if name == "privacy":
        assert {"FedAvg", "FUELS", "FUELS + Laplace 0.5"} <= rows.keys()
    if name == "predictions":  # the references have errors, and no thirds of the hours
        assert rows["last value"][2:4] == ["", ""] and 0 <= float(rows["last value"][4]) <= 100
        assert float(rows["last value"][1]) > 0
    if name == "metr-la":
        assert rows["FUELS"][5:7] == ["0.125", "0.166"] and rows["ridge"][5:7] == ["", ""]


def test_some_methods_on_stretches_of_the_test_part_with_the_papers_figures(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shared)
    words = ["performance", "--data", str(shared / "panel.npz"), "--rounds", "2", "--clients", "3"]
    words += ["--set", "model.hidden=4", "--threads", "1", "--out", "divided"]
    words += ["--option", "methods=solo,fuels", "--option", "paper=Net", "--option", "divide=3,2"]
    result = run_cli(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    page = (shared / "divided" / "performance.md").read_text()
    assert (
        page.count("**Test errors on panel, 3 clients, 2 rounds, split 26/7/7, test periods") == 2
    )
    assert page.count("What federation is worth: the MSE of FUELS") == 2
    with (shared / "divided" / "performance-panel-test-periods-4-to-5.csv").open() as file:
        heading, *rows = csv.reader(file)
    assert heading[5] == "paper Net MSE (as printed)"
    found = {row[0]: row[5:7] for row in rows}
    assert list(found)[:3] == ["FUELS", "Solo", "last value"]
    assert found["Solo"] == ["2.423", "0.654"] and found["ridge"] == ["", ""]


def test_metr_la_can_take_zeros_for_speeds(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared)
    wanted: list[Settings] = []

    def noting(self: Context, runs: Sequence[Settings], **how: Any) -> list[RunResult]:
        wanted.extend(runs)
        raise FuelsError("enough")

    monkeypatch.setattr(Context, "runs", noting)
    words = ["metr-la", "--data", str(shared / "panel.npz"), "--option", "step=1h"]
    for zeros, mark in (("speeds", "none"), ("missing", "0")):
        assert "enough" in str(run_cli(*words, "--option", f"zeros={zeros}").exception)
        assert wanted.pop().data.missing == mark


def test_what_looks_at_one_is_asked_for_each_of_several(tmp_path: Path) -> None:
    """No seed and no data are dropped while the page names them."""

    def looked_at(context: Context) -> Result:
        [source], [seed] = context.sources, context.seeds
        table = Table([Column("data"), Column("seed")], [[source, seed]], "Looked at")
        return Result({"look": table}, text=["The same of all.", f"Seed {seed} was seen."])

    def all_at_once(context: Context) -> Result:
        return Result({"all": Table([Column("n")], [[len(context.sources), len(context.seeds)]])})

    def context(*sources: str, seeds: tuple[int, ...]) -> Context:
        return Context(sources=sources, clients=3, rounds=2, seeds=seeds, out=tmp_path)

    size = Budget(clients=3, rounds=2)
    one = Experiment("look", "A look", looked_at, size, size, one_source=True, one_seed=True)
    every = one.result(context("a/x.csv", "synthetic:net", seeds=(0, 7)))
    assert [table.rows[0] for table in every.tables.values()] == [
        ["a/x.csv", 0], ["a/x.csv", 7], ["synthetic:net", 0], ["synthetic:net", 7]
    ]  # fmt: skip
    assert list(every.tables)[1] == "look-x-seed-7"
    assert every.tables["look-synthetic-net-seed-7"].title == "Looked at (synthetic:net, seed 7)"
    assert every.text[:2] == [
        "The same of all.",
        "x, seed 0; synthetic:net, seed 0: Seed 0 was seen.",
    ]
    [name] = one.result(context("a/x.csv", seeds=(7,))).tables
    assert name == "look"
    assert list(one.result(context("a/x.csv", seeds=(1, 2))).tables)[1] == "look-seed-2"
    # What cannot work with the last is refused before the first is read.
    seen: list[int] = []

    def refuse(context: Context) -> None:
        if context.seeds == (7,):
            raise FuelsError("not with seed 7")

    def looking(context: Context) -> Result:
        seen.append(context.seeds[0])
        return looked_at(context)

    careful = Experiment("look", "A look", looking, size, size, one_seed=True, check=refuse)
    with pytest.raises(FuelsError, match="not with seed 7"):
        careful.result(context("a", seeds=(0, 7)))
    assert not seen
    plain = Experiment("all", "All", all_at_once, size, size)
    assert plain.result(context("a", "b", seeds=(1, 2, 3))).tables["all"].rows == [[2, 3]]


def test_every_training_experiment_is_known_and_listed() -> None:
    assert TRAINED.keys() <= set(NAMES)
    listed = run_cli("list").stdout
    assert all(name in listed for name in NAMES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["performanc"], "did you mean performance"),
        (["privacy", "--scale", "huge"], "--scale huge is unknown"),
        (["privacy", "--option", "scale=2"], "did you mean scales"),
        (["privacy", "--option", "scales=a"], "takes comma-separated numbers"),
        (["privacy", "--option", "scales"], "KEY=VALUE"),
        (["ablation", "--option", "x=1"], "has no option x"),
        (["ablation", "--set", "seed=1"], "sets seed itself"),
        (["ablation", "--set", "options.tao=1"], "none of the methods has it"),
        (["ablation", "--set", "options.warm_epochs=2"], "none of the methods has it"),
        (["data", "--set", "options.tau=1"], "none of the methods has it, nor any other"),
        (["prototype-size", "--option", "hidden=0"], "whole numbers of at least 1"),
        (["prototype-size", "--option", "hidden=2.5,2"], "whole numbers of at least 1"),
        (["prototype-size", "--option", "hidden=nan"], "whole numbers of at least 1"),
        (["complexity", "--period", "0"], "windows.period must be at least 2"),
        (["filtering", "--set", "windows.closeness=0"], "closeness"),
        (["data", "--period", "1"], "windows.period must be at least 2"),
        (["predictions", "--option", "threshold=x"], "a number above 0 or auto"),
        (["predictions", "--option", "threshold=nan"], "a number above 0 or auto"),
        (["filtering", "--option", "client=zz"], "client zz does not take part"),
        (["complexity", "--option", "methods=,"], "no method is named"),
        (["complexity", "--option", "methods=fuels,fedavgg"], "did you mean fedavg"),
        (["complexity", "--rounds", "1"], "give --rounds 2"),
        (["complexity", "--clients", "1"], "only one client"),
        (["complexity", "--set", "windows.horizon=2"], "the default of windows.horizon"),
        (["complexity", "--set", "windows.calendar=time"], "the default of windows.calendar"),
        (["metr-la"], "needs its data"),
        (["metr-la", "--data", "x.npz", "--option", "step=2h"], "step=1h or step=5min"),
        (["metr-la", "--option", "zeros=x", "--data", "x.npz"], "choose one of missing, speeds"),
        (["metr-la", "--data", "synthetic:net"], "not METR-LA"),
        (["performance", "--option", "methods=fuels,sol"], "unknown sol; did you mean solo"),
        (["performance", "--option", "paper=Milan"], "the paper's figures are for SMS, Call, Net"),
        (["performance", "--option", "divide=5,x"], "takes comma-separated lengths"),
        (
            ["ablation", "--clients", "2", "--option", "divide=9,9"],
            "11 periods and cannot be divided",
        ),
        (["metr-la", "--data", "x.npz", "--data", "y.npz"], "takes one --data"),
        (["ablation", "--data", "a/x.csv", "--data", "b/x.npz"], "two sources are named x"),
        (["ablation", "--set", "data.source=x.csv"], "use --data"),
        (["ablation", "--set", "data.clients=3"], "use --clients"),
        (["ablation", "--set", "data.resample=2h"], "applies to data from a file"),
        (["ablation", "--out", "/proc/no"], "/proc/no: cannot be created"),
    ],
)
def test_wrong_input_is_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FUELS_DATA", raising=False)
    result = run_cli(*words)
    assert isinstance(result.exception, FuelsError), result.output
    assert message in str(result.exception) and "\n" not in str(result.exception)


def test_settings_of_a_run_follow_the_size_then_the_changes_then_the_experiment(
    tmp_path: Path,
) -> None:
    context = Context(
        sources=("synthetic:sms",),
        **vars(Budget(clients=7, rounds=9, seeds=(3, 4))),
        out=tmp_path,
        changes={"training": {"rounds": 5}, "model": {"hidden": 8}},
        method_options={"tau": "0.5"},
    )
    fuels = context.settings(model={"hidden": 2})
    assert (fuels.seed, fuels.data.source, fuels.data.clients) == (3, "synthetic:sms", 7)
    assert (fuels.training.rounds, fuels.model.hidden) == (5, 2)
    assert fuels.options == {"tau": "0.5"}
    assert context.settings("fedavg", seed=4).options == {}


def test_numbers_sent_are_the_papers() -> None:
    def sent(**changes: Any) -> int:
        method = method_for(resolve(merge(Settings(), changes, "test")), periods=37)
        return prod(method.uploads(1)["prototype"].shape)

    assert sent(options={"periodic": False}) == 888 * 256 == 227328
    for size, count in paper.TABLES["prototype-size"]["sent"].items():
        assert sent(model={"hidden": int(size)}) == count


def test_the_averages_of_the_papers_table_are_those_it_prints() -> None:
    """Guards against slips in copying its figures: the paper prints the averages of these."""
    printed = {"FUELS": 0.827, "Solo": 1.556, "FedAvg": 1.498, "FedProx": 1.472, "FedRep": 1.404,
               "PerFedAvg": 0.917, "pFedMe": 0.948, "FedDA": 2.193}  # fmt: skip
    for name, errors in paper.TABLES["performance"]["errors"].items():
        assert np.mean(errors[::2]) == pytest.approx(printed[name], abs=1.1e-3)


def test_what_training_costs_by_hand() -> None:
    from dataclasses import replace

    from fuels.research.study.compare import compare

    def curve(method: str, loss: list[float], numbers: float) -> Any:
        history = {
            "loss_prediction": np.array(loss),
            "clients": np.full(3, 2.0),
            "numbers_up": np.full(3, numbers),
            "numbers_down": np.zeros(3),
        }
        return replace(record(method, 0, [1.0, 1.0]), history=history)

    found = compare([[curve("fuels", [3, 1, 0.5], 1e6)], [curve("fedavg", [2, 1.5, 1], 2e6)]])
    table, sentence = reached(found, "X")
    # All reach 1: FUELS in round 2 after 2e6 numbers, FedAvg in round 3 after 6e6; 4 bytes each.
    assert [row[3:5] for row in table.rows] == [[2, 8.0], [3, 24.0]]
    assert "FedAvg 33 %" in sentence


def test_stretches_are_where_a_series_changes_least_and_most() -> None:
    change = np.array([5, 5, 1, 1, 3, 9, 9, np.nan, 0.0])
    assert stretches(change, 2) == {"smooth": 2, "fluctuating": 5}


def test_the_page_on_adding_a_method_holds_a_method_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = page_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) < 40
    module = types.ModuleType("fedavgm")
    monkeypatch.setitem(sys.modules, "fedavgm", module)
    exec(compile(code, "add-a-method.md", "exec"), module.__dict__)
    monkeypatch.setitem(METHODS, "fedavgm", "fedavgm:FedAvgM")
    write_panel(make_panel(clients=3), tmp_path / "panel.npz")

    def errors(method: str, **options: float) -> np.ndarray:
        settings = merge(
            Settings(),
            {
                "method": method,
                "data": {"source": str(tmp_path / "panel.npz")},
                "windows": {"split": "7/2/3"},
                "training": {"rounds": 4},
                "model": {"hidden": 4},
                "options": options,
            },
            "test",
        )
        result = ensure_run(settings, Engine(threads=1), Store(tmp_path / "store")).record
        assert result.sent["numbers_up"] == result.sent["numbers_down"] > 0
        return result.scores().mse

    np.testing.assert_allclose(errors("fedavgm", momentum=0.0), errors("fedavg"), rtol=1e-5)
    assert not np.allclose(errors("fedavgm"), errors("fedavg"), rtol=1e-2)
    with pytest.raises(FuelsError, match="momentum"):
        errors("fedavgm", momentum=1.0)


def test_one_file_and_one_line_make_a_method(tmp_path: Path) -> None:
    """Done to a copy of the project, word by word as the page says."""
    code, line = (part.split("```")[0] for part in page_text().split("```python\n")[1:])
    package = Path(shutil.copytree(Path(fuels.__file__).parent, tmp_path / "fuels"))
    (package / "methods" / "fedavgm.py").write_text(code, encoding="utf-8")
    names = package / "methods/registry.py"
    last = '    "fedda": "fuels.methods.fedda:FedDA",\n'
    assert names.read_text(encoding="utf-8").count(last) == 1
    names.write_text(names.read_text(encoding="utf-8").replace(last, last + line), encoding="utf-8")
    said = (
        "from fuels.cli.options import METHODS; from fuels.methods.registry import find_method\n"
        "print(*METHODS, find_method('fedavgm').title)"
    )
    done = subprocess.run(
        [sys.executable, "-c", said],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.split()[-2:] == ["fedavgm", "FedAvgM"]


def test_the_page_on_adding_a_method_names_pieces_that_there_are() -> None:
    table = page_text().split("## What the pieces are for")[1].split("\n\n")[1]
    first = [row.split("|")[1] for row in table.splitlines()[2:]]
    pieces = [piece for cell in first for piece in re.findall(r"`(\w+)`", cell)]
    assert len(pieces) > 15
    # `name` and `title` are only announced there: every method says its own.
    assert [p for p in pieces if not hasattr(Method, p)] == ["name", "title"]


def page_text() -> str:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-method.md"
    return page.read_text(encoding="utf-8")
