"""The command line in its details: names in errors, notes, help, completion, odd tables, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from fuels.cli.options import in_options, setting_options
from fuels.cli.run import run_command
from fuels.config import LATER, Data, Settings, to_dict
from fuels.data.writers import write_panel
from fuels.methods.registry import METHODS, find_method, method_names
from fuels.research.experiments.registry import EXPERIMENTS, find_experiment
from helpers.commands import FUELS, SMALL, Fuels
from helpers.panels import make_panel


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "0"], "fuels: --rounds must be at least 1"),
        (["--rounds=0"], "fuels: --rounds must be at least 1"),
        (["--set", "training.rounds=0"], "fuels: training.rounds must be at least 1"),
        (["--split", "1/2"], "fuels: --split is train/val/test in whole periods"),
        (["--period", "1"], "fuels: --period must be at least 2"),
        (["--seed", "-1"], "fuels: --seed must not be negative; it is -1"),
        (["--clients", "-3"], "fuels: --clients takes a positive integer or all, not -3"),
        (["--clients", "0"], "fuels: --clients takes a positive integer or all, not 0"),
        (["--set", "data.clients=-3"], "fuels: data.clients must not be negative"),
        (["--keep", "all"], "fuels: --keep must be best or last"),
        (["--threads", "0"], "fuels: --threads takes a positive integer or all, not 0"),
        (["--set", "engine.threads=-1"], "fuels: engine.threads must not be negative"),
        (["--horizon", "0"], "fuels: --horizon must be at least 1"),
        (["--data", ""], "fuels: --data is empty: give it a value or omit it"),
        (["--out="], "fuels: --out is empty"),
        (["--config", " "], "fuels: --config is empty"),
        (["--resume", ""], "fuels: --resume is empty"),
        (["--warm-start", ""], "fuels: --warm-start is empty"),
        (["--device", "gpu"], "fuels: --device is gpu; it must be cpu or cuda"),
        (["--horizon", "4000"], "fuels: --horizon is 4000, but training has samples in"),
        (["--set", "engine.kernels=x"], "fuels: engine.kernels must be one of auto, fused, plain"),
        (["--set", "options.tau=a"], "fuels: --set options.tau=a: options.tau must be a number"),
        (["--set", "mixture.levels="], "fuels: mixture.levels must be one or more percentages"),
        (["--set", "model.hidden=10000000"], "fuels: this machine does not have enough memory"),
        (["--activity", "sms"], "fuels: --activity applies to data from a file; the embedded data"),
        (["--from", "2013-11-05"], "fuels: --from applies to data from a file"),
    ],
)
def test_errors_name_the_option_that_was_typed(
    fuels: Fuels,
    words: list[str],
    message: str,
) -> None:
    code, _, err = fuels("run", *words)
    assert code == 1 and message in err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "--data", ""],
        ["compare", "--store", ""],
        ["experiment", "ablation", "--data", ""],
        ["data", "describe", "x.csv", "--coordinates="],
        ["data", "synth", "--out", ""],
        ["forecast", "r", "--data", ""],
        ["forecast", ""],
    ],
)
def test_nothing_is_said_for_something(fuels: Fuels, words: list[str]) -> None:
    code, _, err = fuels(*words)
    assert code == 1 and err.startswith("fuels: ") and " is empty: give it a value" in err
    assert not list(Path().iterdir())


def test_all_clients_can_be_asked_for(fuels: Fuels, csv: str) -> None:
    code, _, err = fuels("run", "--data", csv, "--scale", "quick", "--clients", "all", *SMALL)
    assert code == 0 and "--scale quick: all clients, 2 rounds" in err


def test_notes_stand_once_and_only_above_a_run_that_begins(fuels: Fuels, csv: str) -> None:
    words = ("run", "--data", csv, "--out", "r", *SMALL)
    code, out, err = fuels(*words)
    assert code == 0 and (out + err).count("--preset paper") == 1
    for wrong in (words, ("run", "--data", "none.csv"), ("compare", "--data", "none.csv")):
        code, out, err = fuels(*wrong)
        assert code == 1 and not out and len(err.splitlines()) == 1


def test_a_note_on_the_data_stands_once_above_a_study(fuels: Fuels, data: Path) -> None:
    words = ["--data", str(data), "--methods", "fuels,solo", "--rounds", "1", "--period", "12"]
    code, _, err = fuels("compare", *words, "--set", "model.hidden=4", "--threads", "1")
    assert code == 0 and err.count("the data repeat every 24 steps") == 1


@pytest.mark.parametrize("width", ["80", "120"])
def test_help_reads_as_prose(fuels: Fuels, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    """Paragraphs fill the width: a line ends early only where the next word would not fit."""
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", int(width))
    told = ("run", "forecast", "compare", "experiment", "bench", "data convert", "federation run")
    for command in told:
        code, out, _ = fuels(*command.split(), "--help")
        assert code == 0
        text = out[: out.index("╭")].splitlines()
        for line, after in pairwise(text[2:]):
            if line.strip() and after.strip():
                room = int(width) - 2 - len(line.rstrip())
                assert len(after.split()[0]) + 1 > room, (command, line)


@pytest.mark.parametrize(
    ("option", "message"),
    [("tua = 1", "fuels has no option options.tua; did you mean tau?"), ('tau = "a"', "a number")],
)
def test_wrong_options_name_their_file(fuels: Fuels, option: str, message: str) -> None:
    Path("c.toml").write_text(f"[options]\n{option}\n")
    code, _, err = fuels("run", "--config", "c.toml")
    assert code == 1 and err.startswith("fuels: c.toml: ") and message in err
    Path("r").mkdir()
    Path("c.toml").rename("r/config.toml")
    code, _, err = fuels("run", "--resume", "r")
    assert code == 1 and err.startswith("fuels: r/config.toml: ") and message in err


def test_only_what_was_typed_is_renamed() -> None:
    message = (
        "windows.split 9/9/9 asks for 27 periods by the seed; windows.split_x, a.windows.split"
    )
    assert in_options(message, ["run", "--seed", "1"]) == message
    renamed = in_options(message, ["run", "--split=9/9/9", "--seed", "1"])
    assert renamed == message.replace("windows.split 9", "--split 9")


def test_the_options_of_a_run_rename_its_settings() -> None:
    own = set(run_command.__annotations__) - {"return"}
    special = {"from": "start", "to": "end", "engine": "engine_"}
    options = {o.removeprefix("--").replace("-", "_") for o in setting_options().values()}
    others = own - {special.get(option, option) for option in options}
    assert others == {
        *("preset", "privacy", "scale", "settings_", "out", "config", "resume", "json_", "plots"),
        *("track", "profile"),
    }
    written = {*to_dict(Settings())["data"], *LATER["data"]}
    assert written == set(Data.__dataclass_fields__)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("run --method ", " ".join(METHODS)),
        ("run --method fed", "fedavg fedprox fedrep fedda"),
        ("run --preset pa", "paper"),
        ("run --scale ", "quick paper"),
        ("run --activity ", "net sms call"),
        ("run --how ", "sum mean"),
        ("run --engine ", "local ray"),
        ("run --device ", "cpu cuda"),
        ("run --keep ", "best last"),
        ("run --timezone Europe/Ro", "Europe/Rome"),
        ("forecast --how m", "mean"),
        ("data convert --activity ", "net sms call all"),
        ("data convert --layout ", "long wide"),
        ("data synth --activity s", "sms"),
        ("experiment c", "communication complexity"),
        ("experiment l", "list"),
    ],
)
def test_the_shell_completes_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, found: str
) -> None:
    from fuels.cli import main

    words = f"fuels {line}"
    monkeypatch.setenv("_FUELS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setattr("sys.argv", ["fuels"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert capsys.readouterr().out.split() == found.split()


def test_names_are_those_of_what_they_stand_for() -> None:
    for name in method_names():
        assert find_method(name).name == name
    for name in EXPERIMENTS:
        assert find_experiment(name).name == name


def test_help_says_what_a_path_is_and_how_long_a_first_run_takes(fuels: Fuels) -> None:
    for command in ("describe", "convert"):
        code, out, _ = fuels("data", command, "--help")
        arguments = out[out.index("Arguments") : out.index("Options")]
        assert code == 0 and "A CSV, Parquet" in arguments
    for words in (["--help"], ["run", "--help"]):
        text = " ".join(fuels(*words)[1].split())
        assert "synthetic data in a minute or two." in text


def test_text_for_programs_is_not_wrapped(fuels: Fuels, csv: str) -> None:
    """Each note is one line, whatever rich takes for the width of a pipe."""
    _, _, err = fuels("run", "--data", csv, "--scale", "quick", "--clients", "all", *SMALL)
    notes = [line for line in err.splitlines() if line.startswith("--scale quick")]
    assert len(notes) == 1 and notes[0].endswith("give --scale paper")
    code, out, _ = fuels("data", "describe", csv, "--missing", "99999")
    lines = out.splitlines()
    assert code == 0 and all(line == line.rstrip() for line in lines)
    labels = [line[:18].strip() for line in lines[: lines.index("")]]
    assert all(labels)  # a line without a label would be the rest of another


def test_a_run_says_what_it_does_after_the_rounds(
    fuels: Fuels, csv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuels.runs.ahead.FARTHEST", 1)
    _, _, err = fuels("run", "--data", csv, "--preset", "paper", *SMALL)
    assert err.splitlines()[-1] == "comparing with the references"
    _, _, err = fuels("run", "--data", csv, *SMALL, "--plots")
    assert err.splitlines()[-3:] == [
        "weighing the experts, comparing with the references",
        "drawing the plots",
        "looking ahead and writing the report",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("time,a\n2024-01-01,'1,5'\n", "if decimals are written with a comma"),
        ("client,time,value\na,2024-01-01,1,5\n", "write decimals with a point"),
        ('time,a\n2024-01-01,"1,200"\n', "say which with --thousands=comma or --decimal=comma"),
        ("wer,time,y\na,2024-01-01,1\n", "names the clients, give --client-column=wer"),
        ("id,wann,y\na,2024-01-01,1\n", "name it with --time-column=wann"),
        ("id,time,y\na,01/02/2024,1\n", "--time-format='%d/%m/%Y' or --time-format='%m/%d/%Y'"),
        (
            "a,2024-01-01T00:00,1.5\na,2024-01-01T01:00,1.5\n",
            "not column names: add a line such as",
        ),
        ("2024-01-01,1,1\n2024-01-02,1,1\n", "not column names: add a line"),
        ("7,1383260400000,1.5\n7,1383264000000,1.5\n", "not column names: add a line"),
        ("01/02/2024;1\n02/02/2024;1\n", "not column names: add a line"),
        ("client:time:value\na:2024-01-01:1\n", "separate columns by comma, semicolon or tab"),
        ("client,time\na,2024-01-01\n", "no value column besides 'time' and 'client'"),
    ],
)
def test_hints_for_common_tables(
    fuels: Fuels,
    tmp_path: Path,
    content: str,
    message: str,
) -> None:
    (tmp_path / "t.csv").write_text(content)
    code, _, err = fuels("data", "describe", "t.csv")
    assert code == 1 and err.startswith("fuels: t.csv: ") and message in err
    assert len(err.splitlines()) == 1


def test_files_that_the_shell_spread_are_noticed(fuels: Fuels) -> None:
    code, _, err = fuels("run", "--data", "a.csv", "b.csv")
    assert code == 2 and "put a pattern in quotes" in " ".join(err.replace("│", "").split())


def test_text_that_is_not_utf8_says_so(fuels: Fuels, tmp_path: Path) -> None:
    rows = "".join(f"a,2024-01-{day:02d},1\n" for day in range(1, 31))
    for before in ("", 2000 * rows):  # found with the column names, or only by the reader
        text = f"client,time,value\n{before}Köln,2024-01-01,1\n"
        (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
        code, _, err = fuels("data", "describe", "t.csv")
        assert code == 1 and err == "fuels: t.csv: not readable as text: save it in UTF-8\n"


def test_a_wide_table_of_clients_with_odd_names_is_no_headless_one(
    fuels: Fuels,
    tmp_path: Path,
) -> None:
    rows = "".join(f"2024-01-{day:02d},{day},1\n" for day in range(1, 9))
    (tmp_path / "t.csv").write_text(f"time,2024-01-01,4050\n{rows}")
    code, out, err = fuels("data", "describe", "t.csv")
    assert code == 0 and "2024-01-01" in out, err
    (tmp_path / "t.csv").write_text(f"1,2,3\n{rows}")
    code, out, err = fuels("data", "describe", "t.csv", "--time-column", "1")
    assert code == 0 and "2 (2, 3)" in out, err


def test_a_short_span_says_which_split_would_do(fuels: Fuels, tmp_path: Path) -> None:
    write_panel(make_panel(clients=2, days=9), tmp_path / "nine.csv")
    paper = ("run", "--data", "nine.csv", "--preset", "paper", "--out", "r", *SMALL)
    code, _, err = fuels(*paper)
    assert code == 1 and "try --split 6/1/2" in err
    code, _, err = fuels(*paper, "--split", "6/1/2")
    assert code == 0, err


def test_a_period_that_does_not_fit_is_noted(fuels: Fuels, tmp_path: Path) -> None:
    write_panel(make_panel(clients=2, days=20), tmp_path / "t.csv")
    words = ("run", "--data", "t.csv", *SMALL)
    code, _, err = fuels(*words, "--period", "12", "--out", "a")
    assert code == 0
    notes = [line for line in err.splitlines() if "repeat every" in line]
    assert len(notes) == 1 and "repeat every 24 steps, but the period is set to 12" in notes[0]
    assert "--period 24" in notes[0]
    code, _, err = fuels(*words, "--out", "b")
    assert code == 0 and "repeat every" not in err


def _sigint_as_usual() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job would inherit it as ignored


def test_ctrl_c_before_the_commands_are_there(
    fuels: Fuels, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "fuels.cli.commands":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "fuels.cli.commands", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert fuels("--version") == (130, "", "fuels: interrupted\n")


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    write_panel(make_panel(clients=2, days=14), tmp_path / "t.csv")
    words = ["run", "--data", "t.csv", "--out", "r", "--rounds", "100000", *SMALL[:2], *SMALL[4:]]
    run = subprocess.Popen(
        [*FUELS, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_sigint_as_usual,
    )
    metrics = tmp_path / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    try:
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "Traceback" not in out + err
    assert err.splitlines()[-1] == "fuels: interrupted; continue with: fuels run --resume r"
    assert (tmp_path / "r" / "checkpoint.safetensors").exists()
