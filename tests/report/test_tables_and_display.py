"""What a person sees of a run: numbers, tables and progress."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fuels.config import Settings, Training
from fuels.data.windows import Dataset
from fuels.evaluation.outcome import best_reference
from fuels.federation.loop import Round
from fuels.federation.transport import Failure
from fuels.report.display import LiveProgress, PlainProgress, Progress, progress, working
from fuels.report.style import duration, number, short
from fuels.report.tables import (
    Column,
    Table,
    facts,
    print_outcome,
    print_profile,
    results,
    to_plain,
)
from helpers.outcomes import ERRORS, dataset, mixed, outcome, summary_of

NAN = float("nan")


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.053423, "0.05342"),
        (0.0534, "0.05340"),
        (9.99996, "10.00"),
        (123.456, "123.5"),
        (1234.5678, "1,235"),
        (2387307.5, "2,387,308"),
        (6144, "6,144"),
        (-0.5, "-0.5000"),
        (0.0, "0"),
        (0.0000123456, "1.235e-05"),
        (NAN, "–"),
        (None, "–"),
        (float("inf"), "∞"),
    ],
)
def test_numbers_have_four_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_durations_and_short_names() -> None:
    assert [duration(s) for s in (0.4, 7, 754, 3723)] == ["0:00", "0:07", "12:34", "1:02:03"]
    assert short("abcdef", 6) == "abcdef"
    assert short("abcdefg", 6) == "abcde…"


# -- tables ------------------------------------------------------------------------------------

TABLE = Table(
    columns=[Column("name"), Column("MSE", "z", "lowest"), Column("share", "%", "highest")],
    rows=[["a|b", 0.05342, 12], ["c", 1.5, 90], ["d", NAN, None]],
    title="T",
)


def test_table_as_markdown() -> None:
    assert TABLE.to_markdown() == (
        "**T**\n\n"
        "| name | MSE (z) | share (%) |\n"
        "| --- | ---: | ---: |\n"
        "| a\\|b | **0.05342** | 12 |\n"
        "| c | 1.500 | **90** |\n"
        "| d | – | – |\n"
    )


def test_table_as_csv_keeps_every_digit() -> None:
    table = replace(TABLE, rows=[["a,b", 0.1234567891, 1], ["c", None, 2]])
    assert table.to_csv() == 'name,MSE (z),share (%)\n"a,b",0.1234567891,1\nc,,2\n'


def test_plain_table_aligns_decimal_points() -> None:
    assert TABLE.to_plain().splitlines() == [
        "T",
        "",
        "name       MSE  share",
        "             z      %",
        "----  --------  -----",
        "a|b   0.05342*    12",
        "c     1.500       90*",
        "d     –            –",
    ]


def test_best_values_that_look_equal_are_both_marked() -> None:
    columns = [Column("n"), Column("x", best="lowest")]
    table = Table(columns, [["a", 0.100001], ["b", 0.1], ["c", 2]])
    assert table.to_markdown().count("**0.1000**") == 2
    alone = Table(columns, [["a", 0.1]])
    assert "**" not in alone.to_markdown()


def test_results_hold_hand_computed_means() -> None:
    table = results(outcome(dataset(unit="calls"), ERRORS).summary)
    assert [column.heading for column in table.columns[1:]] == [
        "MSE (z-scored)",
        "MAE (z-scored)",
        "MSE (calls²)",
        "MAE (calls)",
    ]
    name, *values = table.rows[0]
    assert name == "FUELS"
    # mean of 0.01, 0.04, 0.09 and of 0.1, 0.2, 0.3; the unit has a standard deviation of 2
    np.testing.assert_allclose(values, [0.14 / 3, 0.2, 4 * 0.14 / 3, 0.4], rtol=1e-5)  # type: ignore[arg-type]
    assert [row[0] for row in table.rows] == ["FUELS", "last value", "ridge"]


def test_facts_name_the_best_reference_and_the_share() -> None:
    found = facts(outcome(dataset(), ERRORS).summary, Path("runs/a"))
    # ridge: (0.04 + 0.01 + 0.16) / 3 = 0.07 is below 0.09; FUELS wins for c0 and c2
    assert found["Comparison"] == (
        "FUELS beats ridge, the best reference, for 67 % of the clients (2 of 3)"
    )
    assert "Note" not in found
    assert found["Sent"] == (
        "10 numbers up and 20 down per participating client in the last round;"
        " on average 30 up and 40 down per client in 3 rounds"
    )
    assert found["Model kept"] == "the best one on the validation part"
    assert found["Results"] == "runs/a"
    assert not {"Left out", "Filled", "Synthetic data", "Failures"} & set(found)


def test_facts_say_when_references_are_better() -> None:
    one = facts(outcome(dataset(), {**ERRORS, "ridge": [0.1, 0.1, 0.1]}).summary)
    assert one["Note"] == "ridge has a lower mean MSE than FUELS on these data"
    both = facts(outcome(dataset(), {**ERRORS, "FUELS": [1.0, 1.0, 1.0]}).summary)
    assert both["Note"] == "last value and ridge have a lower mean MSE than FUELS on these data"


def test_facts_name_what_happened_to_the_data() -> None:
    data = replace(
        dataset(synthetic=True),
        filled=1200,
        left_out={f"x{i}": "constant: always 0" for i in range(5)},
    )
    run = outcome(data, ERRORS)
    run.history[1]["failures"] = ["site-a: gave no answer"]
    summary = summary_of(run)
    found = facts(summary)
    assert found["Left out"] == (
        "5 clients: x0 (constant: always 0), x1 (constant: always 0), x2 (constant: always 0)"
        " and 2 more"
    )
    assert found["Filled"] == "1,200 missing values, none of them a target"
    assert "Synthetic data" in found
    assert "(synthetic data)" in results(summary).title
    assert found["Failures"] == ("1 reply missing or refused; the first: site-a: gave no answer")


def test_facts_say_which_model_was_kept() -> None:
    def kept(data: Dataset, keep: str = "best") -> str:
        settings = Settings(training=Training(keep=keep))
        return facts(outcome(data, ERRORS, settings=settings).summary)["Model kept"]

    assert kept(dataset()) == "the best one on the validation part"
    assert kept(dataset(), "last") == "the last one, as requested"
    without = dataset(periods=(4, 0, 2))
    assert kept(without) == "the last one, because there is no validation part"
    data = dataset()
    validation = slice(*data.split.part("val"))
    data.target[0, validation] = False
    assert kept(data) == (
        "the best one on the validation part, for 2 of 3 clients; the last one, because the"
        " validation part has no observed value with known inputs, for 1 of 3 clients"
    )
    data.target[:, validation] = False
    assert kept(data) == (
        "the last one, because the validation part has no observed value with known inputs"
    )


def test_a_run_without_references_or_scores_still_reports() -> None:
    alone = outcome(dataset(), {"FUELS": [0.1, 0.2, 0.3]})
    assert best_reference(alone) is None
    assert "Comparison" not in facts(alone.summary)
    for periods, why in {
        (4, 1, 0): "there is no test part",
        (4, 1, 2): "the test part has no observed value with known inputs",
    }.items():
        text = to_plain(outcome(dataset(periods=periods), {}, scores={}, forecasts={}).summary)
        assert f"{why}, so there is nothing to compare" in text
        assert "MSE" not in text


def test_facts_of_a_mixture_tell_the_personal_model_from_the_experts() -> None:
    found = facts(mixed(outcome(dataset(), ERRORS)).summary)
    assert found["Experts"] == (
        "FUELS mixes its model with 1 expert; the best of these 2 on its own is"
        " FUELS model (MSE 0.04667); the model had the largest weight in 100 % of all steps"
    )
    assert found["Intervals"] == (
        "the 80 % intervals contained 80.0 % of the actual values (75 to 85 % by time of the"
        " period, 80 to 80 % for nine in ten clients, mean width 2.000); the 95 % intervals"
        " contained 95.0 % of the actual values (94 to 96 % by time of the period, 95 to 95 % for"
        " nine in ten clients, mean width 2.000); mean pinball loss of their bounds 0.1230"
    )
    assert found["Range"] == (
        "forecasts and intervals are at least 0, because no training value is negative"
        " (--at-least none turns this off)"
    )


def test_a_client_without_a_target_does_not_spoil_the_comparison() -> None:
    data = dataset()
    data.target[0, data.split.val :] = False
    summary = outcome(data, ERRORS).summary
    assert "50 % of the clients (1 of 2)" in facts(summary)["Comparison"]
    assert results(summary).title.endswith(", 2 of 3 clients")  # its errors are the mean of two


@pytest.mark.parametrize("terminal", [False, True])
def test_printing_says_everything(terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    print_outcome(outcome(dataset(), ERRORS).summary, Path("runs/[a]"), console)
    text = file.getvalue()
    for word in ("FUELS", "last value", "0.04667", "runs/[a]", "z-scored"):
        assert word in text
    assert ("\x1b[" in text) == terminal
    assert ("0.04667*" in text) != terminal


def test_profile_gives_shares() -> None:
    file = io.StringIO()
    print_profile({"train": 3.0, "save": 1.0}, Console(file=file))
    assert "75.00" in file.getvalue()
    assert "25.00" in file.getvalue()


# -- progress ----------------------------------------------------------------------------------


class Clock:
    """A clock that moves when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def done(
    k: int, val_mse: float = NAN, failures: tuple[Failure, ...] = (), best_round: int = 0
) -> Round:
    return Round(
        k,
        100,
        losses={"intra": 2.0, "prediction": 1 / k},
        val_mse=val_mse,
        best_round=best_round,
        failures=[*failures],
    )


def lines_of(display: Progress) -> list[str]:
    assert isinstance(display.console.file, io.StringIO)
    return display.console.file.getvalue().splitlines()


def plain(total: int, start: int = 0) -> tuple[PlainProgress, Clock]:
    clock = Clock()
    return PlainProgress(total, start, Console(file=io.StringIO(), width=40), clock=clock), clock


def test_plain_lines_of_a_quick_training_come_every_tenth() -> None:
    display, clock = plain(100)
    with display:
        for k in range(1, 101):
            clock.now += 0.01
            display.on_round(done(k))
    shown = lines_of(display)
    assert [line.split()[1] for line in shown] == [*map(str, range(1, 100, 10)), "100"]
    assert shown[0] == "round   1 of 100 | prediction 1.000, intra 2.000 | 0:01 left"
    assert shown[-1] == "round 100 of 100 | prediction 0.01000, intra 2.000 | done in 0:01"


def test_plain_lines_of_a_slow_training_come_every_two_seconds() -> None:
    display, clock = plain(100)
    with display:
        for k in range(1, 8):
            clock.now += 0.9
            display.on_round(done(k))
    assert [line.split()[1] for line in lines_of(display)] == ["1", "4", "7", "7"]
    assert lines_of(display)[-1].endswith("stopped after 0:06")


def test_time_left_follows_the_latest_rounds() -> None:
    display, clock = plain(20)
    assert display.seconds_left() is None
    clock.now += 50
    display.on_round(done(1))  # the first round sets things up
    for k in range(2, 12):
        clock.now += 2
        display.on_round(done(k))
    assert display.seconds_left() == pytest.approx(9 * 2)
    clock.now += 1
    assert display.seconds_left() == pytest.approx(9 * 2 - 1)


def test_a_resumed_training_goes_on_where_it_was() -> None:
    display, clock = plain(100, start=60)
    display.best_score, display.best_round = 0.5, 42
    with display:
        for k in (61, 62):
            clock.now += 3
            display.on_round(done(k, val_mse=0.75, best_round=42))
    assert lines_of(display)[0] == (
        "round  61 of 100 | prediction 0.01639, intra 2.000"
        " | validation MSE 0.7500 (best 0.5000, round 42) | 1:57 left"
    )


def test_the_best_round_is_the_one_that_training_goes_by() -> None:
    """When clients join, the mean error of fewer clients is no longer the one to beat."""
    display, _ = plain(2)
    with display:
        display.on_round(done(1, val_mse=0.5, best_round=1))
        display.on_round(done(2, val_mse=0.75, best_round=2))
    assert "MSE 0.5000 (best 0.5000, round 1)" in lines_of(display)[0]
    assert "MSE 0.7500 (best 0.7500, round 2)" in lines_of(display)[1]


def test_failures_are_counted_and_the_newest_is_named() -> None:
    display, _ = plain(2)
    with display:
        display.on_round(done(1, failures=(Failure("a", "late"), Failure("b", "[red]NaN"))))
        display.on_round(done(2))
    assert "| failures 2 so far, now b: [red]NaN |" in lines_of(display)[0]
    assert "| failures 2 so far |" in lines_of(display)[1]


def test_the_console_decides_on_the_display() -> None:
    kinds = [
        type(progress(5, 0, Console(file=io.StringIO(), force_terminal=terminal)))
        for terminal in (True, False)
    ]
    assert kinds == [LiveProgress, PlainProgress]
    assert progress(5).console.stderr


def test_live_panel_shows_the_round_and_survives_an_interruption() -> None:
    file = io.StringIO()
    display = progress(5, 2, Console(file=file, force_terminal=True, width=80))
    display.best_score, display.best_round = 0.25, 1
    with pytest.raises(KeyboardInterrupt), display as watcher:
        watcher.on_round(done(3, val_mse=0.5))
        raise KeyboardInterrupt
    text = file.getvalue()
    for words in ("round 2 of 5", "round 3 of 5", "MSE 0.5000 (best 0.2500, round 1)", "60%"):
        assert words in text
    assert "stopped after" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is back


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_done_after_the_rounds_is_said(terminal: bool) -> None:
    file = io.StringIO()
    with working(Console(file=file, force_terminal=terminal, width=30))("weighing the [experts]"):
        at_once = file.getvalue()
    said = file.getvalue()
    assert "weighing the [experts]" in said
    assert terminal or at_once == said == "weighing the [experts]\n"
