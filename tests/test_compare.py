"""Comparisons: the store that computes nothing twice, and the table with its sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from conftest import make_panel
from fuels.cli.compare import compare_command
from fuels.config import Engine, Settings, merge
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.experiments.grid import wide_table
from fuels.methods import METHODS
from fuels.study import store as store_module
from fuels.study.compare import (
    Comparison,
    as_json,
    compare,
    improved,
    notes,
    paired,
    spread,
    table,
)
from fuels.study.progress import Quiet
from fuels.study.record import Record, described
from fuels.study.store import Store, data_digest, ensure_run, ensure_runs, run_key

ENGINE = Engine(threads=1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "panel.npz"
    path.parent.mkdir()
    write_panel(make_panel(clients=7), path)
    return path


def small(source: Path, **changes: Any) -> Settings:
    base = merge(
        Settings(),
        {
            "data": {"source": str(source), "clients": 6},
            "windows": {"split": "7/2/3"},
            "training": {"rounds": 3},
            "model": {"hidden": 4},
        },
        "test",
    )
    return merge(base, changes, "test")


# -- the store ---------------------------------------------------------------------------------


def no_training(*_: object, **__: object) -> None:
    raise AssertionError("this run was already done")


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

        def found(self, settings: Settings) -> None:
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
        ensure_run(small(data), ENGINE, store, teller=Stops())
    seen: list[int] = []

    class Counts(Stops):
        def on_round(self, done: Any) -> None:
            seen.append(done.number)

    resumed = ensure_run(small(data), ENGINE, store, teller=Counts()).record
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
        ensure_runs(wanted, ENGINE, Store(tmp_path / "store"), teller=Quiet())
    # Also what only the data tell: three training periods are too few for FedDA's augmented set.
    wanted = [small(data, method=name) for name in ("fuels", "fedda")]
    with pytest.raises(FuelsError, match=r"too short .* or leave fedda out"):
        ensure_runs(wanted, ENGINE, Store(tmp_path / "store"), teller=Quiet())


def test_a_failed_run_is_named_and_the_others_are_kept(tmp_path: Path, data: Path) -> None:
    wanted = [small(data), small(data, seed=1, training={"learning_rate": 1e30})]
    store = Store(tmp_path / "store")
    with pytest.raises(FuelsError, match=r"run 2 of 2 \(fuels, seed 1\): round .* are kept"):
        ensure_runs(wanted, ENGINE, store, teller=Quiet())
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
    with pytest.raises(FuelsError, match="the record of a run of other clients"):
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
        kept = described(settings)["training"]["warm_start"]
        assert kept.startswith("earlier:") and str(tmp_path) not in kept
    assert len(keys) == 2


def test_data_without_test_values_are_refused_before_anything_runs(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "run", no_training)
    with pytest.raises(FuelsError, match="nothing to compare"):
        wanted = [small(data, windows={"split": "7/5/0"})]
        ensure_runs(wanted, ENGINE, Store(tmp_path / "store"), teller=Quiet())


# -- the table ---------------------------------------------------------------------------------


def record(
    method: str, seed: int, mse: Sequence[float], clients: Sequence[str] = (), **training: Any
) -> Record:
    """A record with these errors; MAE is half of them, the reference's MSE is 0.5 everywhere."""
    errors, title = np.array(mse, dtype=float), METHODS[method].title
    usual = {"optimiser": "adam", "learning_rate": 0.001, "momentum": 0.0, "selection": 1.0}
    return Record(
        key=f"{method}{seed}",
        method=method,
        title=title,
        version="0",
        settings={
            "seed": seed,
            "data": {"clients": 2},
            "training": {**usual, **training},
            "options": asdict(METHODS[method].Options()),
        },
        data={"name": "made up", "synthetic": False, "periods": [40, 11, 11]},
        clients=tuple(clients) or tuple(f"c{i}" for i in range(len(mse))),
        std=np.full(len(mse), 2.0),
        mse={title: errors, "ridge": np.full(len(mse), 0.5)},
        mae={title: errors / 2, "ridge": np.full(len(mse), 0.5)},
        history={"clients": np.full(10, len(mse)), "numbers_up": np.full(10, 5.0),
                 "numbers_down": np.full(10, 7.0)},
        kept_model="last",
        sent={"numbers_up": 5, "numbers_down": 7, "total_up": 50.0 * len(mse),
              "total_down": 70.0 * len(mse)},
        seconds=1.0,
    )  # fmt: skip


def test_the_table_by_hand() -> None:
    found = compare(
        [
            [record("fuels", 0, [1.0, 2.0]), record("fuels", 1, [3.0, 4.0])],
            [record("solo", 0, [1.5, 1.5]), record("solo", 1, [4.0, 5.0])],
        ]
    )
    shown = table(found)
    rows = {row[0]: row for row in shown.rows}
    assert list(rows) == ["FUELS", "Solo", "ridge"]
    # Means 1.5 and 3.5 of the seeds: mean 2.5, standard deviation sqrt 2.
    assert rows["FUELS"][1:5] == pytest.approx([2.5, 2**0.5, 1.25, 2**0.5 / 2])
    # 12 numbers a round over 10 rounds, 4 bytes each.
    assert rows["FUELS"][5:8] == pytest.approx([5, 7, 480e-6])
    assert rows["FUELS"][8] == 75 and rows["Solo"][8] is None
    assert rows["ridge"][8] == 100 and rows["ridge"][5] is None
    fuels, solo = found.row("FUELS"), found.row("Solo")
    assert fuels is not None and solo is not None
    assert improved(fuels, solo) == 75 and fuels.mean("mse_unit") == 10
    content = as_json(found)
    assert content["rows"][0]["mse_by_seed"] == [1.5, 3.5]  # type: ignore[index]
    assert content["rows"][0]["bytes_up"] == 20  # type: ignore[index]
    assert any("ridge has a lower MSE than FUELS" in note for note in notes(found))


def test_a_client_drawn_by_several_seeds_counts_once() -> None:
    found = compare(
        [
            [record("fuels", 0, [1, 1], ["a", "b"]), record("fuels", 1, [1, 1], ["a", "c"])],
            [record("fedavg", 0, [2, 3], ["a", "b"]), record("fedavg", 1, [4, 5], ["a", "c"])],
        ]
    )
    # a: mean of 1 and 3; b: 2; c: 4.
    np.testing.assert_array_equal(paired(found.rows[0], found.rows[1]), [2, 2, 4])


def test_the_significance_is_wilcoxons() -> None:
    first = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    second = [0.11, 0.22, 0.33, 0.44, 0.55, 0.66]  # all larger: p = 2 / 2^6 for six pairs
    [sentence] = [
        note
        for note in notes(compare([[record("fedavg", 0, second)], [record("fuels", 0, first)]]))
        if "Wilcoxon" in note
    ]
    assert sentence.startswith("FUELS (MSE 0.3500) against FedAvg (0.3850): lower for 100% of 6")
    assert "is significant at 5 % (paired Wilcoxon, p = 0.031)" in sentence
    mixed = [0.11, 0.18, 0.33, 0.36, 0.55, 0.61]
    text = " ".join(notes(compare([[record("fedavg", 0, mixed)], [record("fuels", 0, first)]])))
    assert "is not significant" in text


def test_a_mean_carried_by_few_clients_is_told() -> None:
    first = [0.11] * 19 + [0.1, 1.0]
    second = [0.1] * 20 + [9.0]  # better for 19 of 21, and far behind on one
    found = compare([[record("fuels", 0, first)], [record("solo", 0, second)]])
    [sentence] = [note for note in notes(found) if "Wilcoxon" in note]
    assert sentence.startswith("FUELS (MSE 0.1519) against Solo (0.5238): lower for 5% of 21")
    assert "most clients are better off with Solo, which is significant at 5 %" in sentence
    assert sentence.endswith("though the mean says FUELS.")


def test_what_decides_who_takes_part_is_told_where_seeds_differ_in_it() -> None:
    same = compare([[record("fuels", 0, [1, 2]), record("fuels", 1, [3, 4])]])
    other = compare([[record("fuels", 0, [1, 2]), record("fuels", 1, [3, 4], ["c0", "c7"])]])
    assert ["which clients are drawn" in " ".join(notes(found)) for found in (same, other)] == [
        False,
        True,
    ]


def test_rounding_is_no_spread() -> None:
    assert spread(np.array([0.1 + 0.2, 0.3, 0.3])) == 0
    assert spread(np.array([1.0, 3.0])) == pytest.approx(2**0.5)
    assert spread(np.array([1.0])) is None


def test_methods_say_what_the_reader_should_know() -> None:
    found = compare([[record("fuels", 0, [1.0])], [record("pfedme", 0, [1.0])]])
    assert any(note.startswith("pFedMe takes 5 gradient steps on a batch") for note in notes(found))


def test_the_spread_of_the_average_over_sources() -> None:
    def of(first: float, second: float) -> Comparison:
        return compare([[record("fuels", 0, [first]), record("fuels", 1, [second])]])

    # Averages of the seeds: 2 and 2. What goes up on one source goes down on the other.
    shown = wide_table({"a": of(1.0, 3.0), "b": of(3.0, 1.0)}, "made up")
    names = [column.name for column in shown.columns]
    assert shown.rows[0][names.index("average MSE")] == 2
    assert shown.rows[0][names.index("average MSE ±")] == 0


def test_methods_with_ways_of_their_own_are_named() -> None:
    own = {"optimiser": "sgd", "learning_rate": 0.01, "momentum": 0.9, "selection": 0.1}
    found = compare(
        [
            [record("fuels", 0, [1.0])],
            [record("solo", 0, [1.0])],
            [record("fedda", 0, [1.0], **own)],
        ]
    )
    [note] = [note for note in notes(found) if "own optimiser" in note]
    assert note.startswith("FedDA") and "SGD 0.01 with momentum 0.9, 10 % of the clients" in note


def test_records_stay_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rounds, clients = 200, [f"cell-{i:05d}" for i in range(100)]
    big = record("fuels", 0, rng.random(100).tolist(), clients)
    names = ["FUELS", "last value", "one period ago", "one week ago", "ridge", "ridge + phase"]
    columns = ("loss_prediction", "loss_inter", "loss_intra", "val_mse", "val_mae")
    big = replace(
        big,
        mse={name: rng.random(100) for name in names},
        mae={name: rng.random(100) for name in names},
        history={
            **{name: rng.random(rounds) for name in columns},
            **{name: np.full(rounds, 6144.0) for name in ("numbers_up", "numbers_down", "clients")},
        },
    )
    big.write(tmp_path / "record.json")
    assert (tmp_path / "record.json").stat().st_size < 40_000
    kept = Record.read(tmp_path / "record.json")
    np.testing.assert_allclose(kept.mse["ridge"], big.mse["ridge"], rtol=1e-6)


# -- the command -------------------------------------------------------------------------------


def run_cli(*words: str) -> Any:
    app = typer.Typer()
    app.command()(compare_command)
    return CliRunner().invoke(app, list(words))


def test_the_command_writes_the_table_three_times(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--data", str(data), "--methods", "fuels,solo", "--seeds", "0,1", "--rounds", "2"]
    words += ["--split", "7/2/3", "--clients", "6", "--set", "model.hidden=4", "--threads", "1"]
    result = run_cli(*words, "--set", "options.tau=0.05", "--json")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / "compare" / "panel"
    content = json.loads((folder / "compare.json").read_text())
    assert content["seeds"] == [0, 1]
    assert [row["name"] for row in content["rows"][:3]] == ["FUELS", "Solo", "last value"]
    assert (folder / "compare.csv").read_text().startswith("method,MSE (z-scored)")
    assert (folder / "compare.md").read_text().count("| FUELS |") == 1
    assert "run 4 of 4: solo, panel.npz, seed 1" in result.stderr
    assert "run 1 of 4: fuels, panel.npz, seed 0, tau=0.05" in result.stderr
    again = run_cli(*words, "--set", "options.tau=0.05")
    assert again.stderr.count("(already done)") == 4
    assert re.search(r"FUELS +\d\.\d+", again.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "fuels,fedav"], "did you mean fedavg"),
        (["--methods", ","], "names no method"),
        (["--seeds", "0,x"], "--seeds takes whole numbers"),
        (["--seeds", "-1"], "--seeds takes whole numbers"),
        (["--methods", "solo", "--set", "options.tau=1"], "none of the methods has it"),
        (["--methods", "fuels", "--set", "options.tau=big"], "must be a number"),
        (["--set", "training.round=1"], "did you mean rounds"),
        (["--seeds", "9" * 30], "is too large"),
        (["--set", "seed=5"], "give --seeds"),
        (["--set", "method=fedavg"], "give --methods"),
        (["--set", "engine.threads=2"], "give --threads"),
        (["--clients", "4", "--out", "/proc/no"], "/proc/no: cannot be created"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_wrong_input_is_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_cli(*words)
    assert isinstance(result.exception, FuelsError), result.output
    assert message in str(result.exception) and "\n" not in str(result.exception)
