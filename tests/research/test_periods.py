"""Stretches of the test part: the same errors as runs that are tested on those periods alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuels.config import Engine
from fuels.errors import FuelsError
from fuels.research.study import store as store_module
from fuels.research.study.archive import pack, read_archive
from fuels.research.study.periods import divide, parse_lengths, stretches
from fuels.research.study.record import Record
from fuels.research.study.store import Store, ensure_run
from helpers.commands import Fuels
from helpers.studies import no_training, small

ENGINE = Engine(threads=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def trained(store: Store, data: Path) -> Record:
    return ensure_run(small(data, training={"rounds": 2}), ENGINE, store).record


def test_a_stretch_has_the_errors_of_a_run_that_is_tested_on_it_alone(
    store: Store, trained: Record, data: Path
) -> None:
    settings = small(data, training={"rounds": 2})
    found = divide([[trained]], [store.dataset(settings)], (1, 2))
    assert list(found) == ["test periods 1 to 1", "test periods 2 to 3"]
    short = small(data, training={"rounds": 2}, windows={"split": "7/2/1"})
    alone = ensure_run(short, ENGINE, store).record
    first = found["test periods 1 to 1"].record
    assert first.references == alone.references
    for name in alone.mse:
        np.testing.assert_allclose(first.mse[name], alone.mse[name], rtol=5e-4)
        np.testing.assert_allclose(first.mae[name], alone.mae[name], rtol=5e-4)
    # Both stretches together are the whole test part.
    second = found["test periods 2 to 3"].record
    whole = (first.mse["FUELS"] + 2 * second.mse["FUELS"]) / 3
    np.testing.assert_allclose(whole, trained.mse["FUELS"], rtol=1e-3)


def test_an_early_record_without_errors_by_period_stays_readable_and_is_completed(
    store: Store, trained: Record, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = replace(trained, by_period={})
    content = json.loads(json.dumps(early.to_dict()))
    assert "by_period" not in content
    (tmp_path / "folder").mkdir()
    early.write(tmp_path / "folder" / "early.json")
    pack(tmp_path / "records.jsonl.xz", [tmp_path / "folder"])
    settings, archive = small(data, training={"rounds": 2}), tmp_path / "records.jsonl.xz"
    monkeypatch.setattr(store_module, "run", no_training)
    fresh = Store(tmp_path / "other", archive)
    assert ensure_run(settings, ENGINE, fresh).record.key == trained.key
    with pytest.raises(AssertionError, match="already done"):  # it would be trained again
        ensure_run(settings, ENGINE, fresh, by_period=True)
    with pytest.raises(FuelsError, match="an early record without errors by period"):
        divide([[early]], [store.dataset(settings)], (1,))
    # Where the run's folder is left, its record is completed without training.
    early.write(store.runs / f"{trained.key}.json")
    completed = ensure_run(settings, ENGINE, store, by_period=True).record
    assert completed.to_dict() == trained.to_dict()
    assert Record.read(store.runs / f"{trained.key}.json").by_period
    completed.write(tmp_path / "folder" / "early.json")
    assert pack(archive, [tmp_path / "folder"])["replaced"] == 1
    assert read_archive(archive)[trained.name].by_period


def test_lengths_that_do_not_fit_are_refused(store: Store, data: Path) -> None:
    assert parse_lengths("", "--divide-test") == () and parse_lengths("1, 2", "x") == (1, 2)
    dataset = store.dataset(small(data))
    assert stretches((), dataset) == []
    for text in ("0", "x", "1,,1", "-1"):
        with pytest.raises(FuelsError, match="--divide-test takes comma-separated lengths"):
            parse_lengths(text, "--divide-test")
    with pytest.raises(FuelsError, match=r"has 3 periods and cannot be divided into 2 \+ 2"):
        stretches((2, 2), dataset)


def test_the_command_shows_a_table_for_each_stretch(
    tmp_path: Path, data: Path, fuels: Fuels
) -> None:
    words = ["--data", str(data), "--methods", "solo", "--rounds", "2", "--split", "7/2/3"]
    words += ["--clients", "6", "--set", "model.hidden=4", "--threads", "1"]
    words += ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    code, _, said = fuels("compare", *words, "--divide-test", "1,2")
    assert code == 0, said
    page = (tmp_path / "out" / "compare.md").read_text()
    assert page.count("| Solo |") == 2 and page.count("Means over the clients") == 1
    assert "split 7/2/3, test periods 2 to 3**" in page
    assert (tmp_path / "out" / "compare-test-periods-1-to-1.csv").is_file()
    content = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert list(content) == ["test periods 1 to 1", "test periods 2 to 3"]
