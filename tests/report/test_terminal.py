"""Tables at any width: no figure and no name is cut."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fuels.cli.experiment import list_experiments
from fuels.evaluation.outcome import StepsAhead
from fuels.report.tables import Column, Table, print_outcome, steps_ahead
from fuels.report.terminal import plain, say, wrapped
from fuels.research.cost_tables import sent_table, work_table
from fuels.research.costs import COSTS, Sizes, costs
from fuels.research.experiments.registry import EXPERIMENTS, find_experiment
from helpers.outcomes import ERRORS, dataset, mixed, outcome

COMPARED = Table(
    columns=[
        Column("method"),
        Column("MSE", "z-scored", "lowest"),
        Column("MSE ±", "sd over seeds"),
        Column("MAE", "z-scored", "lowest"),
        Column("MAE ±", "sd over seeds"),
        Column("up", "numbers"),
        Column("down", "numbers"),
        Column("in all", "MB/client"),
        Column("beats Solo", "% of clients"),
    ],
    rows=[
        ["ridge + time of period", 0.0534, 0.0012, 0.1234, 0.0021, 100865, 100865, 161.4, 93.5],
        ["FUELS", 0.0512, 0.0017, 0.1199, 0.0023, 6144, 12288, 14.75, 97.25],
    ],
    title="Errors",
)


def shown(table: Table, width: int) -> str:
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system=None, width=width).print(table.to_rich())
    return file.getvalue()


def sizes() -> Sizes:
    return Sizes(clients=100, rounds=200)


TABLES = {
    "compare": lambda: COMPARED,
    "cost, sent": lambda: sent_table(costs(sizes(), tuple(COSTS)), sizes()),
    "cost, work": lambda: work_table(costs(sizes(), tuple(COSTS)), sizes()),
}


@pytest.mark.parametrize("width", [120, 80, 60, 40])
@pytest.mark.parametrize("name", TABLES)
def test_every_figure_and_name_is_there(name: str, width: int) -> None:
    table = TABLES[name]()
    text = shown(table, width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for row in table._shown("{}"):
        for figure in row[1:]:
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,])", text), figure
    if width >= 80:
        for row in table.rows:
            assert str(row[0]) in text
    for column in table.columns:
        for word in f"{column.name} {column.unit}".split():
            assert word in text


def test_a_table_that_fits_is_as_when_piped() -> None:
    """The same lines, but for the rule and the stars."""
    text = shown(COMPARED, 200).replace("─", "")
    piped = COMPARED.to_plain().replace("*", " ")
    words = [line.split() for line in piped.splitlines() if not line.startswith("--")]
    assert [line.split() for line in text.splitlines() if line.strip()] == [w for w in words if w]


def test_columns_that_do_not_fit_stand_below_with_the_names_again() -> None:
    lines = shown(COMPARED, 80).splitlines()
    assert sum(line.startswith("method") for line in lines) == 2
    assert sum(line.startswith("ridge + time of period") for line in lines) == 2


def test_decimal_points_stay_in_one_line() -> None:
    table = Table([Column("n"), Column("a long heading")], [["a", 0.5], ["b", 12.25], ["c", 3]])
    assert shown(table, 12).splitlines() == [
        "    a long",
        "n  heading",
        "──────────",
        "a   0.5000",
        "b  12.25",
        "c   3",
    ]


def test_texts_break_at_blanks_and_commas() -> None:
    assert wrapped("hidden=2,4,8 beta=1", 12) == ["hidden=2,4,8", "beta=1"]
    assert wrapped("hidden=2,4,8 beta=1", 10) == ["hidden=2,", "4,8 beta=1"]
    assert wrapped("unbreakable", 4) == ["unbr", "eaka", "ble"]
    assert wrapped(" 1.5  ", 6) == [" 1.5  "]


def test_the_best_value_is_green_in_its_band() -> None:
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="standard", width=80).print(
        COMPARED.to_rich()
    )
    assert re.findall(r"\x1b\[1;32m *([\d.]+)", file.getvalue()) == ["0.05120", "0.1199"]


def test_the_list_of_experiments_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    list_experiments({name: find_experiment(name) for name in EXPERIMENTS})
    text = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "…" not in text and max(len(line) for line in text.splitlines()) <= 80
    first = {line.split()[0] for line in text.splitlines() if line.strip() and line[0] != " "}
    assert set(EXPERIMENTS) < first
    lines = text.splitlines()
    place = next(line.index("own options") for line in lines if "own options" in line)
    options = "\n".join(line[place:].strip() for line in lines).replace(",\n", ",").split()
    for experiment in map(find_experiment, EXPERIMENTS):
        assert {f"{key}={value}" for key, value in experiment.options.items()} <= set(options)


def test_errors_by_steps_ahead_at_80_columns() -> None:
    names = ("mixture", "own head", "recursive", "last value", "one period ago")
    mse = {name: [0.01234, 0.02345] for name in names}
    ahead = StepsAhead(mse, [(0.8012, 0.9534)] * 2, [(0.4567, 0.8765)] * 2, [0.0567] * 2)
    file = io.StringIO()
    run = mixed(outcome(dataset(), ERRORS, steps_ahead=ahead))
    console = Console(file=file, force_terminal=True, color_system=None, width=80)
    print_outcome(run.summary, console=console)
    text = file.getvalue()
    assert "…" not in text
    assert text.count("0.01234") == text.count("0.02345") == len(names)
    assert text.count("80.12") == text.count("95.34") == 2
    assert text.count("0.4567") == text.count("0.8765") == 2
    assert max(len(line) for line in text.splitlines()) <= 80
    table = steps_ahead(run.summary)
    assert table is not None
    names = tuple(column.name for column in table.columns[-5:])
    assert names == ("in 80 %", "width 80 %", "in 95 %", "width 95 %", "pinball loss")


def test_sentences_wrap_on_a_terminal_alone() -> None:
    sentence = "a sentence with some [words] in it " * 4
    for terminal in (True, False):
        file = io.StringIO()
        say(Console(file=file, force_terminal=terminal, width=40), sentence.strip())
        lines = file.getvalue().splitlines()
        assert (len(lines) == 1) != terminal
        assert terminal or lines == [sentence.strip()]


def test_plain_text_has_no_wrap_and_no_trailing_blanks() -> None:
    wide = Table([Column("n"), Column("text")], [["a", "word " * 60], ["b", "x"]])
    lines = plain(wide.to_rich()).splitlines()
    assert len(lines) == 4
    assert all(line == line.rstrip() for line in lines)
    assert lines[2].count("word") == 60
