"""What a site's owner allows, as it is now: whoever changes site.toml need not restart anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuels.config import Settings, merge
from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode
from fuels.federation.flower.folders import Consent, SiteFolder
from fuels.federation.flower.worker import Worker
from helpers.flower_world import LIMIT, World, settings


def change(world: World, old: str, new: str) -> None:
    for file in world.root.glob("sites/*/site.toml"):
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))


def ask_again(world: World, number: int, made: float = 9.0) -> Envelope:
    """North's answer to the letter of a round, once more."""
    (letter,) = [c for s, k, n, c in world.network.sent if (s, k, n) == ("north", "train", number)]
    worker = Worker(SiteFolder(world.root / "sites" / "north"), world.settings)
    return decode(worker.answer(letter, made=made), LIMIT)


def first_answer(world: World, number: int) -> Envelope:
    (answer,) = [c for s, k, n, c in world.network.got if (s, k, n) == ("north", "train", number)]
    return decode(answer, LIMIT)


# -- withdrawn -------------------------------------------------------------------------------------


def test_a_repeated_answer_follows_the_consent_to_metrics_of_now(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))
    world.run()
    first = first_answer(world, 2)
    assert set(ask_again(world, 2).arrays) == set(first.arrays) >= {"val_mse", "loss/prediction"}
    change(world, "metrics = true", "metrics = false")
    again = ask_again(world, 2)
    assert set(again.arrays) == {"upload/prototype"}
    assert (again.arrays["upload/prototype"] == first.arrays["upload/prototype"]).all()


def test_a_repeated_answer_needs_the_consent_to_raw_values_of_now(tmp_path: Path) -> None:
    chosen = replace(settings(rounds=1), options={"periodic": False})
    world = World(tmp_path / "fed", chosen)
    change(world, "raw_derived = false", "raw_derived = true")
    world.run()
    assert "upload/prototype" in ask_again(world, 1).arrays
    change(world, "raw_derived = true", "raw_derived = false")
    with pytest.raises(FuelsError, match="this site does not consent to it"):
        ask_again(world, 1)


# -- how much a prototype is a summary of ----------------------------------------------------------


def windows(method: str = "fuels", **changes: Any) -> Settings:
    return merge(settings(method, rounds=1), {"windows": changes}, "test")


def test_the_default_is_the_safe_one() -> None:
    assert Consent().least_periods == 7 and Consent().longest_period == 288
    assert not Consent().raw_derived


@pytest.mark.parametrize(
    ("chosen", "old", "new", "reason"),
    [  # of 8 training days 3 only feed the windows: 5 are averaged
        (windows(), "least_periods = 1", "least_periods = 7", "fewer than 7 periods"),
        (windows(), "longest_period = 288", "longest_period = 23", "more than 23 rows"),
        (
            windows(period=72, split="4/0/1", lags="1-3"),
            "least_periods = 1",
            "least_periods = 7",
            "fewer than 7 periods",
        ),
    ],
)
def test_a_prototype_of_few_or_long_periods_needs_consent(
    tmp_path: Path, chosen: Settings, old: str, new: str, reason: str
) -> None:
    world = World(tmp_path / "fed", chosen)
    change(world, old, new)
    with pytest.raises(FuelsError, match=rf"sends prototype, which .*{reason}.*does not consent"):
        world.run()
    assert world.network.got == []  # not even who its clients are
    change(world, "raw_derived = false", "raw_derived = true")
    assert world.run("second")[0]["clients"] == 6


def test_at_the_limits_it_leaves_without_consent(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", windows())
    change(world, "least_periods = 1", "least_periods = 5")
    change(world, "longest_period = 288", "longest_period = 24")
    assert world.run()[0]["clients"] == 6


def test_models_are_no_means_of_periods(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", windows("fedavg"))
    change(world, "least_periods = 1", "least_periods = 1000")
    change(world, "longest_period = 288", "longest_period = 1")
    assert world.run()[0]["clients"] == 6


# -- copies ----------------------------------------------------------------------------------------


def test_every_different_message_that_leaves_is_kept(tmp_path: Path) -> None:
    """The server has lost a round: north trains round 2 again, from the models of round 3."""
    world = World(tmp_path / "fed", settings(rounds=3))
    change(world, "keep_copies = false", "keep_copies = true")
    world.run()
    folder = world.root / "sites" / "north" / "runs" / "run" / "sent"
    before = (folder / "train-00002.bin").read_bytes()
    world.network.time = 100.0
    again = ask_again(world, 2, made=200.0)
    assert ask_again(world, 2, made=201.0).arrays.keys() == again.arrays.keys()  # and repeats it
    names = sorted(file.name for file in folder.glob("train-*"))
    assert names == ["train-00001.bin", "train-00002-2.bin", "train-00002.bin", "train-00003.bin"]
    assert (folder / "train-00002.bin").read_bytes() == before
    second = decode((folder / "train-00002-2.bin").read_bytes(), LIMIT)
    assert (second.arrays["upload/prototype"] == again.arrays["upload/prototype"]).all()
