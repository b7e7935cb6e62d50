"""The service, the timer and the crontab line of an hourly forecast."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuels.cli.forecast import forecast_command
from fuels.cli.serve import serve_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FOLDER = "/var/lib/fuels/traffic"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / name)
    return parser


def crontab() -> tuple[list[str], str]:
    """The five fields of the line, and its command."""
    lines = (DEPLOY / "fuels-forecast.cron").read_text().splitlines()
    (line,) = [line for line in lines if line and not line.startswith("#")]
    *fields, command = line.split(maxsplit=5)
    return fields, command


def words(command: str) -> list[str]:
    """`fuels` and what follows, without what the shell does around it."""
    command = command.split("&&")[-1].split("2>>")[0]
    program, *rest = shlex.split(command)
    assert program == "/opt/fuels/bin/fuels"
    return rest


def test_both_start_the_same_forecast() -> None:
    service = unit("fuels-forecast.service")["Service"]
    command, (verb, run, *options) = crontab()[1], words(service["ExecStart"])
    assert (verb, run) == ("forecast", f"{FOLDER}/run")
    assert command.startswith(f"cd {FOLDER} && ")
    inside = ("run", "next.parquet")
    whole = [f"{FOLDER}/{word}" if word in inside else word for word in words(command)]
    assert whole == [verb, run, *options]
    known = set(forecast_command.__annotations__)
    given = {option.removeprefix("--") for option in options if option.startswith("--")}
    assert given == {"data", "horizon", "out", "overwrite"} and given <= known
    assert service["WorkingDirectory"] == service["ReadWritePaths"] == FOLDER
    assert service["Type"] == "oneshot" and service["User"] == "fuels"
    assert options[options.index("--out") + 1].startswith(FOLDER)  # all else is read-only


def test_they_start_every_hour() -> None:
    timer = unit("fuels-forecast.timer")
    fields, _ = crontab()
    assert fields == ["5", "*", "*", "*", "*"]
    assert timer["Timer"]["OnCalendar"] == "*-*-* *:05:00"
    assert timer["Timer"]["Persistent"] == "true"
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_the_service_over_http_serves_the_same_run() -> None:
    service = unit("fuels-serve.service")["Service"]
    verb, run, *options = words(service["ExecStart"])
    assert (verb, run) == ("serve", f"{FOLDER}/run")
    given = {option.removeprefix("--") for option in options if option.startswith("--")}
    assert given == {"horizon", "port"} and given <= set(serve_command.__annotations__)
    assert service["WorkingDirectory"] == service["ReadWritePaths"] == FOLDER
    assert service["Restart"] == "always" and service["IPAddressAllow"] == "localhost"
    guide = (ROOT / "docs" / "how-to" / "serve-forecasts.md").read_text()
    assert "cp deploy/fuels-serve.service /etc/systemd/system/" in guide


def test_systemd_takes_them(tmp_path: Path) -> None:
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd is not installed")
    names = ("fuels-forecast.service", "fuels-forecast.timer", "fuels-serve.service")
    for name in names:
        text = (DEPLOY / name).read_text().replace("/opt/fuels/bin/fuels", sys.executable)
        (tmp_path / name).write_text(text)
    for name in names:
        command = [analyse, "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), name


def test_the_guide_names_every_file_and_path() -> None:
    guide = (ROOT / "docs" / "how-to" / "forecast-every-hour.md").read_text()
    files = ("service", "timer", "cron")
    for needed in (*(f"deploy/fuels-forecast.{each}" for each in files), FOLDER, "useradd"):
        assert needed in guide, needed
