"""Settings: what is written is read back, and what is wrong is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuels.cli.settings import assignment
from fuels.config import (
    Engine,
    Settings,
    late_joiners,
    merge,
    to_dict,
    with_preset,
)
from fuels.data.sample import sample_of
from fuels.errors import FuelsError
from fuels.methods.registry import method_options
from fuels.runs.settings import check, resolve
from fuels.storage.config_file import read_config, write_toml


def test_the_paper_stands_in_the_defaults() -> None:
    """Appendix D.1 of the paper."""
    settings = resolve(Settings())
    assert (settings.windows.period, settings.windows.closeness, settings.windows.periodicity) == (
        24,
        3,
        3,
    )
    assert settings.model.hidden == 128
    training = settings.training
    assert (training.rounds, training.local_epochs, training.learning_rate) == (200, 1, 0.001)
    assert (training.optimiser, training.selection, training.batch) == ("adam", 1.0, 0)
    options = method_options("fuels", {})
    assert (options.tau, options.rho, options.beta) == (0.02, 5.0, 50.0)


def test_toml_round_trip(tmp_path: Path) -> None:
    changes = {
        "seed": 7,
        "data": {"source": "a.csv", "ids": ["x", "y"]},
        "options": {"tau": 0.1, "inter": False},
    }
    settings, engine = merge(Settings(), changes, "test"), Engine(threads=3)
    write_toml(tmp_path / "config.toml", settings, engine)
    assert read_config(tmp_path / "config.toml") == (settings, engine)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sed": 1}, "did you mean seed"),
        ({"training": {"round": 5}}, r"training\.round; did you mean rounds"),
        ({"training": 5}, "is a section"),
        ({"training": {"rounds": "many"}}, "whole number"),
        ({"training": {"rounds": 2.5}}, "whole number"),
        ({"training": {"learning_rate": "x"}}, "must be a number"),
        ({"training": {"learning_rate": "nan"}}, "a finite number"),
        ({"training": {"learning_rate": float("inf")}}, "a finite number"),
        ({"mixture": {"levels": [80, "-inf"]}}, "a finite number"),
        ({"seed": 2**63}, "a whole number up to 9223372036854775807, not 9223372036854775808"),
        ({"seed": "1" * 400}, "a whole number up to"),
        ({"seed": float("inf")}, "must be a whole number, not inf"),
        ({"data": {"ids": 5}}, "must be a list"),
        ({"zzz": 1}, "known: data"),
    ],
)
def test_wrong_keys_and_types_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(FuelsError, match=message):
        merge(Settings(), changes, "file.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"batch": 12}}, "row b is phase b"),
        ({"training": {"rounds": 0}}, r"training\.rounds"),
        ({"training": {"selection": 1.5}}, "share of the clients"),
        ({"training": {"keep": "first"}}, "best or last"),
        ({"training": {"optimiser": "lbfgs"}}, "adam or sgd"),
        ({"windows": {"period": 1}}, r"windows\.period must be at least 2"),
        ({"seed": -1}, "negative"),
        (
            {"mixture": {"levels": []}},
            r"mixture\.levels must be one or more percentages.* not none",
        ),
        ({"mixture": {"levels": [80, 100]}}, "between 0 and 100"),
        ({"model": {"head": "both"}}, r"model\.head must be concat or sum, not both"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(FuelsError, match=message):
        check(merge(Settings(), changes, "test"))


def test_unknown_method_options_are_refused() -> None:
    with pytest.raises(FuelsError, match=r"options\.taau; did you mean tau"):
        method_options("fuels", {"taau": 1})
    with pytest.raises(FuelsError, match="must be true or false"):
        method_options("fuels", {"inter": "maybe"})
    for key in ("tau", "rho"):
        with pytest.raises(FuelsError, match=rf"options\.{key} must be a finite number"):
            method_options("fuels", {key: "inf"})
    assert method_options("fuels", {"tau": "0.5", "inter": "false"}).tau == 0.5


def test_large_whole_numbers_are_not_rounded() -> None:
    for seed in (2**63 - 1, str(2**63 - 1)):
        assert merge(Settings(), {"seed": seed}, "test").seed == 2**63 - 1


def test_assignments() -> None:
    assert assignment("options.tau=0.1") == {"options": {"tau": "0.1"}}
    with pytest.raises(FuelsError, match=r"section\.key=value"):
        assignment("tau")


def test_late_joiners() -> None:
    assert late_joiners("0.2@10") == (0.2, 10)
    assert late_joiners("") == (0.0, 1)
    for text in ("0.2", "1.5@3", "0.2@1", "x@y"):
        with pytest.raises(FuelsError, match="SHARE@ROUND"):
            late_joiners(text)


def test_config_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FuelsError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("seed = = 1")
    with pytest.raises(FuelsError, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")


# -- presets -----------------------------------------------------------------------------------

BEST = with_preset(Settings(), "best", "test")


def test_a_preset_over_another_leaves_nothing_of_it() -> None:
    own = {"windows": {"horizon": 3}, "model": {"hidden": 16}, "options": {"tau": 0.1}}
    paper, best = merge(Settings(), own, "test"), merge(BEST, own, "test")
    assert best.mixture.on and best.windows.target == "change"
    assert with_preset(best, "paper", "test") == paper
    assert with_preset(paper, "best", "test") == best


@pytest.mark.parametrize("line", ['preset = "best"\n', ""])
def test_a_file_says_what_differs_from_its_preset(tmp_path: Path, line: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(line + "[training]\nrounds = 7\n[mixture]\nlevels = [90]\n")
    changes = {"training": {"rounds": 7}, "mixture": {"levels": [90]}}
    assert read_config(path)[0] == merge(BEST, changes, "test")


def test_presets_have_one_way_in(tmp_path: Path) -> None:
    with pytest.raises(FuelsError, match="use --preset"):
        assignment("preset=best")
    with pytest.raises(FuelsError, match="test: unknown preset papr; did you mean paper"):
        with_preset(Settings(), "papr", "test")
    (tmp_path / "own.toml").write_text("preset = 3")
    with pytest.raises(FuelsError, match=r"own\.toml: unknown preset 3"):
        read_config(tmp_path / "own.toml")


def test_windows_that_lags_overrule_are_refused() -> None:
    with pytest.raises(FuelsError, match=r"windows\.periodicity has no effect"):
        sample_of(merge(BEST, {"windows": {"periodicity": 2}}, "test").windows)
    emptied = merge(BEST, {"windows": {"lags": "", "periodicity": 2}}, "test").windows
    assert sample_of(emptied).branches == ((3, 2, 1), (48, 24))


def test_the_unit_is_written_only_if_it_is_given() -> None:
    """Runs made before the setting existed keep their files and their keys."""
    assert "unit" not in to_dict(Settings())["data"]
    named = merge(Settings(), {"data": {"unit": "kWh"}}, "test")
    assert to_dict(named)["data"]["unit"] == "kWh"
    assert merge(Settings(), to_dict(named), "file") == named
