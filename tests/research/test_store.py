"""The store of runs: nothing is computed twice, and nothing wrong is taken for done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine, Settings
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.research.study import store as store_module
from fuels.research.study.record import Record, describe
from fuels.research.study.store import Store, data_digest, ensure_run, ensure_runs, run_key
from helpers.panels import make_panel
from helpers.records import record
from helpers.studies import no_training, small

ENGINE = Engine(threads=1)


def test_a_run_is_done_once(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store", tmp_path / "records")
    first = ensure_run(small(data), ENGINE, store).record
    monkeypatch.setattr(store_module, "run", no_training)
    again = ensure_run(small(data), ENGINE, Store(store.runs)).record
    assert again.key == first.key and again.clients == first.clients
    np.testing.assert_allclose(again.mse["FUELS"], first.mse["FUELS"], rtol=1e-6)
    # The record alone is enough, wherever the data lie and whatever their file is called.
    elsewhere = tmp_path / "other.npz"
    elsewhere.write_bytes(data.read_bytes())
    kept = ensure_run(small(elsewhere), ENGINE, Store(tmp_path / "new", store.records))
    assert kept.record.key == first.key and kept.folder is None
    with pytest.raises(AssertionError):
        ensure_run(small(data, seed=1), ENGINE, store)


def test_a_record_holds_what_a_table_needs_and_no_path(tmp_path: Path, data: Path) -> None:
    store = Store(tmp_path / "store", tmp_path / "records")
    record = ensure_run(small(data), ENGINE, store).record
    [path] = (tmp_path / "records").iterdir()
    assert path.name == f"fuels-{record.key}.json"
    assert str(tmp_path) not in path.read_text() and "panel.npz" in path.read_text()
    kept = Record.read(path)
    assert kept.settings["options"]["tau"] == 0.02 and kept.settings["training"]["rounds"] == 3
    assert kept.rounds == 3 and len(kept.clients) == 6
    assert kept.sent["numbers_up"] == 24 * 8 and kept.sent["numbers_down"] == 2 * 24 * 8
    # Round 1 sends the prototype alone; then PR and NR come back.
    np.testing.assert_array_equal(kept.sent_per_client(), 192 * np.array([1, 4, 7]))
    for name, mse in record.mse.items():
        np.testing.assert_allclose(kept.mse[name], mse, rtol=1e-6)


def test_an_interrupted_run_goes_on(tmp_path: Path, data: Path) -> None:
    class Stops:
        """A place whose display is hit by Ctrl-C in round 2."""

        def reused(self, settings: Settings) -> None:
            raise AssertionError

        def rounds(self, loop: Any, settings: Settings) -> Any:
            return self

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def on_round(self, done: Any) -> None:
            if done.number == 2:
                raise KeyboardInterrupt

    store = Store(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        ensure_run(small(data), ENGINE, store, reporter=Stops())
    seen: list[int] = []

    class Counts(Stops):
        def on_round(self, done: Any) -> None:
            seen.append(done.number)

    resumed = ensure_run(small(data), ENGINE, store, reporter=Counts()).record
    assert seen == [3]
    straight = ensure_run(small(data), ENGINE, Store(tmp_path / "other")).record
    np.testing.assert_array_equal(resumed.mse["FUELS"], straight.mse["FUELS"])
    assert resumed.rounds == 3


def test_a_record_lost_by_a_kill_is_made_again(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    first = ensure_run(small(data), ENGINE, store).record
    (store.runs / f"{first.key}.json").unlink()
    monkeypatch.setattr(store_module, "run", no_training)
    again = ensure_run(small(data), ENGINE, store).record
    assert again.sent == first.sent and again.rounds == 3
    np.testing.assert_allclose(again.mse["FUELS"], first.mse["FUELS"], rtol=1e-6)


def test_models_and_forecasts_are_there_when_asked_for(tmp_path: Path, data: Path) -> None:
    records = tmp_path / "records"
    ensure_run(small(data), ENGINE, Store(tmp_path / "store", records))
    fresh = Store(tmp_path / "new", records)
    assert ensure_run(small(data), ENGINE, fresh).folder is None
    result = ensure_run(small(data), ENGINE, fresh, with_folder=True)
    assert result.folder is not None and result.folder.models.is_file()


def test_a_run_made_under_other_defaults_is_not_taken(tmp_path: Path, data: Path) -> None:
    store = Store(tmp_path / "store", tmp_path / "records")
    first = ensure_run(small(data), ENGINE, store).record
    for path in (store.runs / f"{first.key}.json", store.runs / first.key / "config.toml"):
        text = path.read_text()
        assert "0.02" in text
        path.write_text(text.replace("0.02", "0.03"))
    [kept] = (tmp_path / "records").iterdir()
    kept.write_text(kept.read_text().replace("0.02", "0.03"))
    again = ensure_run(small(data), ENGINE, store).record
    assert again.settings["options"]["tau"] == 0.02
    assert (store.runs / "old" / f"{first.key}-001").is_dir()
    assert Record.read(kept).settings["options"]["tau"] == 0.02


def key(settings: Settings) -> str:
    return run_key(settings, Store().dataset(settings))


def test_the_key_follows_what_decides_the_result_and_nothing_else(data: Path) -> None:
    base = key(small(data))
    same = [
        {"options": {"tau": 0.02}},
        {"training": {"optimiser": "adam", "selection": 1.0}},
        {"data": {"ids": [f"c{i}" for i in range(7)]}},
    ]
    other = [
        {"seed": 1},
        {"method": "solo"},
        {"options": {"tau": 0.03}},
        {"training": {"rounds": 4}},
        {"windows": {"split": "6/3/3"}},
        {"windows": {"max_gap": 2}},
        {"data": {"clients": 5}},
        {"model": {"hidden": 5}},
    ]
    assert {key(small(data, **changes)) for changes in same} == {base}
    keys = {key(small(data, **changes)) for changes in other}
    assert len(keys) == len(other) and base not in keys


def test_values_and_places_decide_the_data(data: Path) -> None:
    settings = small(data, data={"clients": 0})
    dataset = Store().dataset(settings)
    changed = replace(dataset.panel, values=dataset.panel.values * 1.001)
    placed = replace(dataset.panel, coordinates=np.zeros((7, 2)))
    digests = {data_digest(replace(dataset, panel=p)) for p in (dataset.panel, changed, placed)}
    assert len(digests) == 3


def test_a_setting_that_cannot_work_is_refused_before_anything_runs(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "run", no_training)
    wanted = [small(data), small(data, options={"tao": 1})]
    with pytest.raises(FuelsError, match="did you mean tau"):
        ensure_runs(wanted, ENGINE, Store(tmp_path / "store"))
    # Also what only the data tell: three training periods are too few for FedDA's augmented set.
    wanted = [small(data, method=name) for name in ("fuels", "fedda")]
    with pytest.raises(FuelsError, match=r"too short .* or omit fedda"):
        ensure_runs(wanted, ENGINE, Store(tmp_path / "store"))
    # And a client that starts late has no rows for the concatenation prototype.
    panel = make_panel(clients=6, days=30)
    panel.values[: 11 * 24, 2] = np.nan
    write_panel(panel, tmp_path / "late.npz")
    wanted = [
        small(tmp_path / "late.npz", windows={"split": "20/4/6"}, options={"periodic": periodic})
        for periodic in (True, False)
    ]
    with pytest.raises(FuelsError, match="client c2 has training periods without values"):
        ensure_runs(wanted, ENGINE, Store(tmp_path / "store"))
    # Where a seed draws the clients, each seed is asked, wherever the late client turns up.
    drawn = [replace(wanted[1], data=replace(wanted[1].data, clients=3), seed=s) for s in range(9)]
    late = ["c2" in Store().dataset(settings).ids for settings in drawn]
    without, holding = drawn[late.index(False)], drawn[late.index(True)]
    with pytest.raises(FuelsError, match="client c2 has training periods without values"):
        ensure_runs([without, holding, without], ENGINE, Store(tmp_path / "store"))


def test_a_failed_run_is_named_and_the_others_are_kept(tmp_path: Path, data: Path) -> None:
    wanted = [small(data), small(data, seed=1, training={"learning_rate": 1e30})]
    store = Store(tmp_path / "store")
    with pytest.raises(FuelsError, match=r"run 2 of 2 \(fuels, seed 1\): round .* are saved"):
        ensure_runs(wanted, ENGINE, store)
    assert len(list(store.runs.glob("*.json"))) == 1


def test_runs_of_an_earlier_revision_are_not_taken(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = small(data, mixture={"on": True})
    before = key(small(data)), key(mixed)
    monkeypatch.setattr(store_module, "MIXTURE_REVISION", 1)
    assert key(small(data)) == before[0] and key(mixed) != before[1]
    monkeypatch.setattr(store_module, "TRAINING_REVISION", 1)
    assert key(small(data)) != before[0]


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text in ("{", "[]", '{"format": 1}', '{"format": 7}'):
        path.write_text(text)
        with pytest.raises(FuelsError, match=r"record\.json: .* delete it"):
            Record.read(path)


@pytest.mark.parametrize(
    "damage",
    [
        {"settings": {}},
        {"title": "Foo"},
        {"std": [1.0]},
        {"mse": {"FUELS": [1.0]}},
        {"mse": {"FUELS": [None] * 6}},
    ],
)
def test_a_record_whose_parts_do_not_fit_is_named(damage: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record("fuels", 0, [1.0] * 6).write(path)
    Record.read(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(FuelsError, match=r"record\.json: not the record of a run; delete it"):
        Record.read(path)


def test_a_record_of_other_clients_is_not_taken(tmp_path: Path, data: Path) -> None:
    store = Store(tmp_path / "store")
    ensure_run(small(data), ENGINE, store)
    [path] = store.runs.glob("*.json")
    path.write_text(path.read_text().replace('"c1"', '"c9"'))
    with pytest.raises(FuelsError, match="the record of a run with other clients"):
        ensure_run(small(data), ENGINE, store)


def test_a_damaged_folder_makes_no_record(tmp_path: Path, data: Path) -> None:
    store = Store(tmp_path / "store")
    key = ensure_run(small(data), ENGINE, store).record.key
    (store.runs / f"{key}.json").unlink()
    metrics, summary = (store.runs / key / name for name in ("metrics.jsonl", "summary.json"))
    whole = metrics.read_text()
    metrics.write_text(whole[: whole.index("\n") + 1])
    with pytest.raises(FuelsError, match=r"metrics\.jsonl: holds 1 of 3 rounds; delete"):
        ensure_run(small(data), ENGINE, store)
    metrics.write_text(whole)
    content = summary.read_text()
    summary.write_text(content[:50])
    with pytest.raises(FuelsError, match=r"summary\.json: not the summary of a run; delete"):
        ensure_run(small(data), ENGINE, store)
    summary.write_text(content)
    assert ensure_run(small(data), ENGINE, store).record.rounds == 3


def test_a_fresh_record_and_one_read_again_have_the_same_digits(tmp_path: Path, data: Path) -> None:
    store = Store(tmp_path / "store")
    fresh, again = (ensure_run(small(data), ENGINE, store).record for _ in range(2))
    np.testing.assert_array_equal(fresh.mse["FUELS"], again.mse["FUELS"])
    assert fresh.data == again.data


def test_a_run_found_again_has_the_name_of_the_data_at_hand(tmp_path: Path, data: Path) -> None:
    store = Store(tmp_path / "store")
    ensure_run(small(data), ENGINE, store)
    other = data.with_name("other.npz")
    write_panel(replace(make_panel(clients=7), name="other"), other)
    found = ensure_run(small(other), ENGINE, Store(store.runs)).record
    assert found.data["name"] == "other"


def test_small_changes_of_large_values_are_other_data(tmp_path: Path) -> None:
    def of(seed: int) -> str:
        panel = make_panel(clients=7, seed=seed)
        path = tmp_path / f"{seed}.npz"
        write_panel(replace(panel, values=panel.values + 1e9), path)
        return key(small(path))

    assert of(0) != of(1)


def test_a_warm_start_counts_by_its_models(tmp_path: Path, data: Path) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    settings = small(data, training={"warm_start": str(earlier)})
    keys = set()
    for models in (b"one", b"other"):
        (earlier / "models.safetensors").write_bytes(models)
        keys.add(key(settings))
        kept = describe(settings)["training"]["warm_start"]
        assert kept.startswith("earlier:") and str(tmp_path) not in kept
    assert len(keys) == 2


def test_data_without_test_values_are_refused_before_anything_runs(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "run", no_training)
    with pytest.raises(FuelsError, match="nothing to compare"):
        wanted = [small(data, windows={"split": "7/5/0"})]
        ensure_runs(wanted, ENGINE, Store(tmp_path / "store"))


def test_a_result_is_computed_once_and_a_damaged_one_refused(tmp_path: Path) -> None:
    store, computed = Store(tmp_path), iter([{"mse": 0.1}])
    kept = [store.once("kind", "x", lambda: next(computed), lambda got: got["mse"]) for _ in "ab"]
    assert kept == [(0.1, True), (0.1, False)]
    (tmp_path / "kind" / "x.json").write_text("{}")
    with pytest.raises(FuelsError, match=r"x\.json: not a result of this experiment; delete it"):
        store.once("kind", "x", dict, lambda got: got["mse"])
