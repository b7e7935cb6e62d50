"""The archive of records: packing loses and changes nothing, and studies reuse its records."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from fuels.config import Engine
from fuels.errors import FuelsError
from fuels.research.study import store as store_module
from fuels.research.study.archive import pack, read_archive
from fuels.research.study.store import Store, ensure_run
from helpers.commands import Fuels
from helpers.records import record
from helpers.studies import no_training, small

PUBLISHED = Path(__file__).parents[2] / "results" / "records.jsonl.xz"


def test_the_published_archive_is_small_and_every_record_can_be_read() -> None:
    records = read_archive(PUBLISHED)
    assert len(records) >= 459 and PUBLISHED.stat().st_size < 3e6
    assert all(name == f"{each.method}-{each.key}" for name, each in records.items())


def test_packing_keeps_archived_numbers_unless_the_settings_differ(tmp_path: Path) -> None:
    archive = tmp_path / "records.jsonl.xz"
    first, second = record("fuels", 0, [1.0, 2.0]), record("solo", 0, [0.25, float("nan")])
    for each in (first, second):
        each.write(tmp_path / "one" / f"{each.name}.json")
    assert pack(archive, [tmp_path / "one"]) == {"added": 2, "replaced": 0, "already there": 0}
    assert {name: each.to_dict() for name, each in read_archive(archive).items()} == {
        each.name: each.to_dict() for each in (first, second)
    }
    # The same run with other errors stays as published; another run with the same key replaces it.
    replace(first, mse={**first.mse, "FUELS": first.std}).write(tmp_path / "two" / "a.json")
    training = {**second.settings["training"], "learning_rate": 0.5}
    newer = replace(second, settings={**second.settings, "training": training})
    newer.write(tmp_path / "two" / "b.json")
    assert pack(archive, [tmp_path / "two"]) == {"added": 0, "replaced": 1, "already there": 1}
    merged = read_archive(archive)
    assert merged[first.name].to_dict() == first.to_dict()
    assert merged[second.name].settings["training"]["learning_rate"] == 0.5


def test_a_study_reuses_an_archive_and_leaves_it_unchanged(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, archive = Engine(threads=1), tmp_path / "records.jsonl.xz"
    trained = ensure_run(small(data), engine, Store(tmp_path / "first")).record
    pack(archive, [tmp_path / "first"])
    before = archive.read_bytes()
    ensure_run(small(data, seed=1), engine, Store(tmp_path / "second", archive))  # not in it
    assert archive.read_bytes() == before and len(list((tmp_path / "second").glob("*.json"))) == 1
    assert pack(archive, [tmp_path / "second"])["added"] == 1
    monkeypatch.setattr(store_module, "run", no_training)
    for seed in (0, 1):
        ensure_run(small(data, seed=seed), engine, Store(tmp_path / "third", archive))
    reused = ensure_run(small(data), engine, Store(tmp_path / "third", archive)).record
    assert reused.to_dict() == trained.to_dict()


def test_a_damaged_or_missing_archive_is_refused_by_name(tmp_path: Path, fuels: Fuels) -> None:
    archive = tmp_path / "records.jsonl.xz"
    with pytest.raises(FuelsError, match=r"records\.jsonl\.xz: cannot be read \(No such file"):
        read_archive(archive)
    archive.write_bytes(b"not compressed")
    with pytest.raises(FuelsError, match="not an archive of records"):
        read_archive(archive)
    archive.write_bytes(lzma.compress(b'{"format": 1}\n'))
    with pytest.raises(FuelsError, match="line 1: not the record of a run"):
        read_archive(archive)
    whole = lzma.compress(b"x" * 5000)
    archive.write_bytes(whole[:40])
    with pytest.raises(FuelsError, match="not an archive of records"):
        read_archive(archive)
    with pytest.raises(FuelsError, match="holds no records"):
        pack(tmp_path / "new.jsonl.xz", [tmp_path])
