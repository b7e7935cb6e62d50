"""Comparisons: the table with its sentences, and the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fuels.cli.compare import compare_command
from fuels.config import Engine
from fuels.errors import FuelsError
from fuels.research.experiments.grid import wide_table
from fuels.research.study.compare import (
    Comparison,
    as_json,
    compare,
    notes,
    paired,
    spread,
    table,
)
from fuels.research.study.record import Record
from helpers.records import record

ENGINE = Engine(threads=1)


# -- the table ---------------------------------------------------------------------------------


def worth_of(*runs: list[Record]) -> list[str]:
    said = (note for note in notes(compare(runs)) if "what federation is worth" in note.lower())
    return [note.partition(": ")[2] or note for note in said]


def test_every_table_says_what_federation_is_worth() -> None:
    fuels = [record("fuels", 0, [1.0, 2.0, 6.0]), record("fuels", 1, [1.0, 2.0, 6.0])]
    fedavg = [record("fedavg", seed, [1.0, 1.0, 1.0]) for seed in (0, 1)]
    solo = [record("solo", seed, [2.0, 4.0, 4.0]) for seed in (0, 1)]
    assert worth_of(fuels, fedavg, solo) == [
        "the MSE of FedAvg is 70.0 % lower than that of Solo (nothing shared), and lower for 100 %"
        " of the clients; paired Wilcoxon tests: p = 0.25 over 3 clients.",
        "the MSE of FUELS is 10.0 % lower than that of Solo (nothing shared), and lower for 67 % of"
        " the clients; paired Wilcoxon tests: p = 1.0 over 3 clients.",
    ]
    days = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, np.nan]])
    dated = [
        [replace(r, by_period={"mse": days * len(r.title)}) for r in row] for row in (fuels, solo)
    ]
    assert worth_of(*dated)[0].endswith("over 3 clients and p = 0.50 over 2 days.")
    [unknown] = worth_of(fuels, fedavg)
    assert "it has no row in which nothing is shared" in unknown
    assert worth_of(solo) == []
    # Without Solo, the mixture of local experts in the same runs.
    row = "local experts only (nothing shared)"
    six = {row: np.full(3, 6.0)}
    mixed = [replace(r, mse={**r.mse, **six}, mae={**r.mae, **six}) for r in fuels]
    [said] = worth_of(mixed)
    assert said.startswith(f"the MSE of FUELS is 50.0 % lower than that of {row}, and lower for")


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
    assert fuels.improves(solo) == 75 and fuels.mean("mse_unit") == 10
    content = as_json(found)
    assert content["rows"][0]["mse_by_seed"] == [1.5, 3.5]  # type: ignore[index]
    assert content["rows"][0]["bytes_up"] == 20  # type: ignore[index]
    assert any("ridge has a lower MSE than FUELS" in note for note in notes(found))


def test_the_title_names_all_rounds_where_patience_ended_runs() -> None:
    long, short = record("fuels", 0, [1.0, 2.0]), record("solo", 0, [1.0, 2.0])
    assert "2 clients, 10 rounds, split" in table(compare([[long], [short]])).title
    short = replace(short, history={"clients": np.full(4, 2)})
    assert "2 clients, 4 to 10 rounds, split" in table(compare([[long], [short]])).title


def test_notes_say_why_the_last_model_was_kept() -> None:
    def kept(*records: Record) -> str:
        return next(n for n in notes(compare([[r] for r in records])) if n.startswith("Model kept"))

    last = record("fuels", 0, [1.0, 2.0])
    asked = record("fuels", 0, [1.0, 2.0], keep="last")
    none = {"periods": [40, 0, 11]}
    assert kept(replace(last, data=last.data | none)) == (
        "Model kept: last, because there is no validation part."
    )
    assert (
        kept(asked)
        == kept(replace(asked, data=asked.data | none))
        == ("Model kept: last, as requested.")
    )
    assert kept(last) == (
        "Model kept: last, because the validation part has no observed value with known inputs."
    )
    best = replace(record("solo", 0, [1.0, 2.0]), kept_model="best on the validation part")
    assert kept(best) == "Model kept: best on the validation part."
    assert kept(best, asked) == (
        "Model kept: Solo: best on the validation part; FUELS: last, as requested."
    )


def test_notes_name_the_references_that_there_are_and_the_values_that_were_filled() -> None:
    first, second = record("fuels", 0, [0.1, 0.2]), record("fuels", 1, [0.1, 0.2])
    found = [replace(r, data=r.data | {"values_filled": n}) for r, n in ((first, 5), (second, 9))]
    said = notes(compare([found]))
    assert "No reference (ridge) does better than the best method." in said
    assert "Up to 9 missing values were filled in; none of them is a target." in said
    one = [replace(first, data=first.data | {"values_filled": 1})]
    assert "1 missing value was filled in; none of them is a target." in notes(compare([one]))


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
    assert sentence.startswith("FUELS (MSE 0.3500) against FedAvg (0.3850): lower for 100 % of 6")
    assert "is significant at 5 % (paired Wilcoxon, p = 0.031)" in sentence
    mixed = [0.11, 0.18, 0.33, 0.36, 0.55, 0.61]
    text = " ".join(notes(compare([[record("fedavg", 0, mixed)], [record("fuels", 0, first)]])))
    assert "is not significant" in text


def test_a_mean_decided_by_few_clients_is_reported() -> None:
    first = [0.11] * 19 + [0.1, 1.0]
    second = [0.1] * 20 + [9.0]  # better for 19 of 21, and far behind on one
    found = compare([[record("fuels", 0, first)], [record("solo", 0, second)]])
    [sentence] = [note for note in notes(found) if "Wilcoxon," in note]
    assert sentence.startswith("FUELS (MSE 0.1519) against Solo (0.5238): lower for 5 % of 21")
    assert "most clients do better with Solo, which is significant at 5 %" in sentence
    assert sentence.endswith("although FUELS has the lower mean.")


def test_fuels_is_tested_against_solo_wherever_they_rank() -> None:
    def pairs(**errors: float) -> list[str]:
        found = compare([[record(name, 0, [mse] * 7)] for name, mse in errors.items()])
        tested = [note for note in notes(found) if "Wilcoxon," in note]
        return [re.sub(r".*?(\w+) \(MSE .*? against (\w+) .*", r"\1 \2", note) for note in tested]

    assert pairs(fuels=0.1, solo=0.2) == ["FUELS Solo"]
    assert pairs(fuels=0.1, fedavg=0.2, solo=0.3) == ["FUELS FedAvg", "FUELS Solo"]
    assert pairs(solo=0.1, fedavg=0.2, fuels=0.3) == ["Solo FedAvg", "Solo FUELS"]
    assert pairs(fedavg=0.1, fuels=0.2, solo=0.3) == ["FedAvg FUELS", "FUELS Solo"]
    assert pairs(fedavg=0.1, solo=0.2, fuels=0.3) == ["FedAvg Solo", "FedAvg FUELS", "Solo FUELS"]


def test_the_notes_say_that_seeds_draw_different_clients() -> None:
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


def test_rows_that_are_mixtures_say_so() -> None:
    alone = record("fuels", 0, [1.0, 2.0])
    mixed = replace(alone, mixture={"model_led": 0.4})
    noted = ["local experts" in " ".join(notes(compare([[each]]))) for each in (alone, mixed)]
    assert noted == [False, True]


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
    # Of two, it is still FedDA that has its own, in whichever order.
    pair = compare([[record("fedda", 0, [1.0], **own)], [record("fuels", 0, [1.0])]])
    [note] = [note for note in notes(pair) if "own optimiser" in note]
    assert note.startswith("FedDA") and note.endswith(
        "the others Adam 0.001, 100 % of the clients."
    )
    # All of one way have none to tell of.
    alone = compare([[record("fedda", 0, [1.0], **own)]])
    assert not any("own optimiser" in note for note in notes(alone))


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
        by_period={name: rng.random((100, 22)) for name in ("targets", "mse", "mae")},
    )
    big.write(tmp_path / "record.json")
    assert (tmp_path / "record.json").stat().st_size < 100_000
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
    assert "run 1 of 4: fuels, panel.npz, seed 0, tau=0.05, hidden=4" in result.stderr
    again = run_cli(*words, "--set", "options.tau=0.05")
    assert again.stderr.count("(already done)") == 4
    assert re.search(r"FUELS +\d\.\d+", again.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "fuels,fedav"], "did you mean fedavg"),
        (["--methods", ","], "names no method"),
        (["--seeds", "0,x"], "--seeds takes comma-separated integers"),
        (["--seeds", "-1"], "--seeds takes comma-separated integers"),
        (["--methods", "solo", "--set", "options.tau=1"], "none of the methods has it"),
        (["--methods", "fuels", "--set", "options.tau=big"], "must be a number"),
        (["--set", "training.round=1"], "did you mean rounds"),
        (["--seeds", "9" * 30], "is too large"),
        (["--set", "seed=5"], "use --seeds"),
        (["--set", "method=fedavg"], "use --methods"),
        (["--set", "engine.threads=2"], "use --threads"),
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
