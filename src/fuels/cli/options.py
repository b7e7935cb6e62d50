"""Options that several commands share, their shell completion, and their names in messages.

Each option is defined once, with its name and help text. `with_read_options` gives a command all
options that say how a file is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from fuels.config import KEEP, MISSING, Data, Engine, Settings
from fuels.errors import FuelsError
from fuels.methods.registry import METHODS

if TYPE_CHECKING:
    from fuels.data.panel import Panel
    from fuels.data.readers import PanelOptions
    from fuels.data.sources import Source

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
DATA, FORECASTS, COMPUTE = "Data", "Forecasts", "Computation"
METHOD, RESULTS = "Method and training", "Results"


def complete(choices: Iterable[str]) -> Callable[[str], list[str]]:
    """Shell completion of an option that takes one of a few words."""
    return lambda incomplete: [word for word in choices if word.startswith(incomplete)]


def option(
    metavar: str,
    help: str,
    panel: str | None = None,
    *,
    name: str = "",
    default: Any = None,
    choices: Iterable[str] = (),
    **more: Any,
) -> Any:
    """An option of a command: its value in the help, its help text, and the panel it is in.

    `name` replaces the name of the parameter. The shell completes `choices`, by default the words
    of a metavar such as best|last.
    """
    if known := tuple(choices) or [word for word in metavar.split("|") if word.islower()]:
        more.setdefault("autocompletion", complete(known))
    names = [name] if name else []
    return typer.Option(
        default, *names, metavar=metavar or None, help=help, rich_help_panel=panel, **more
    )


def argument(metavar: str, help: str, **more: Any) -> Any:
    """A required argument of a command."""
    return typer.Argument(..., metavar=metavar, help=help, show_default=False, **more)


def flag(help: str, panel: str | None = None, *, name: str = "", default: bool = False) -> Any:
    """An option without a value."""
    return option("", help, panel, name=name, default=default)


def _zones(incomplete: str) -> list[str]:
    from zoneinfo import available_timezones

    return sorted(zone for zone in available_timezones() if zone.startswith(incomplete))


def count(option: str) -> Callable[[str], int]:
    """A parser for a number of at least 1, or all, which settings write as 0."""

    def parse(text: str) -> int:
        if text.lower() == "all":
            return 0
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise FuelsError(f"{option} takes a positive integer or all, not {text}")
        return int(text)

    return parse


CLIENTS = option(
    "N|all",
    "Number of clients to draw at random. Default: all, or the value of --scale.",
    DATA,
    parser=count("--clients"),
)
THREADS = option(
    "N|all",
    "Worker threads. Default: all cores available to this process.",
    COMPUTE,
    parser=count("--threads"),
)
PERIOD = option("STEPS", "Steps per period, such as 24 for hourly data. Default: 24.", DATA)
SPLIT = option(
    "TRAIN/VAL/TEST",
    "Periods for training, validation and test, such as 40/11/11. Default: 40:11:11 in proportion.",
    DATA,
)


AT_LEAST = option(
    "NUMBER",
    "Lowest possible value: no forecast and no interval goes below it. Default: 0 if no training"
    " value is negative; none: no bound.",
    FORECASTS,
)
AT_MOST = option(
    "NUMBER", "Highest possible value: no forecast and no interval goes above it.", FORECASTS
)


IMPLAUSIBLE = option(
    "|".join((MISSING, KEEP)),
    "Values that are implausible given the past of their series: treat them as missing until they"
    " persist (missing), or use them at once (keep). Default: missing with the mixture of experts,"
    " otherwise keep.",
    DATA,
)
DATA_SOURCE = option(
    "PATH|synthetic:NAME",
    "A CSV, Parquet, Excel, npz or HDF5 file; several tables, separated by commas, as a pattern"
    " such as 'daily/*.csv', or as a folder; raw Telecom Italia records (a file or a folder); or"
    " built-in synthetic data: synthetic:net, synthetic:sms, synthetic:call. Default:"
    " synthetic:net.",
    DATA,
)


METHOD_NAME = option(
    "NAME", f"Method to train: {', '.join(METHODS)}. Default: fuels.", METHOD, choices=METHODS
)
JSON = flag("Print JSON for scripts.", name="--json")
SUMMARY = flag("Print summary.json instead of tables.", RESULTS, name="--json")
NEW_FOLDER = option("DIR", "Results folder, new or empty. Default: a new one in runs/.", RESULTS)


def read_option(metavar: str, help: str, **more: Any) -> Any:
    """A field of `ReadOptions` with its option."""
    return field(default=None, metadata={"option": option(metavar, help, DATA, **more)})


@dataclass(frozen=True)
class ReadOptions:
    """How to read a panel; `with_read_options` adds these options to a command."""

    ids: str | None = read_option(
        "A,B,...|@FILE",
        "Use only these clients: comma-separated ids, or @FILE with one id per line.",
    )
    resample: str | None = read_option(
        "STEP",
        "Aggregate the data to a coarser step, such as 15min, 1h or 1d; needs --how. Times may be"
        " irregular.",
    )
    how: str | None = read_option(
        "sum|mean", "Aggregate by sum (counts, volumes) or mean (speeds, levels)."
    )
    start: str | None = read_option(
        "TIME",
        "Start of the data: a date, or a local time such as 2013-11-01T06:00.",
        name="--from",
    )
    end: str | None = read_option(
        "TIME",
        "End of the data: a date (the whole day is included) or a time (excluded).",
        name="--to",
    )
    client_column: str | None = read_option(
        "NAME", "Column of client ids. Default: found by name (client, unique_id, cell_id, ...)."
    )
    time_column: str | None = read_option(
        "NAME[,HOUR]",
        "Column of times, or two, as DATE,HOUR. Default: found by name (time, ds, timestamp, date"
        " and hour, ...).",
    )
    value_column: str | None = read_option(
        "NAME", "Column of values. Default: found by name (value, y)."
    )
    time_format: str | None = read_option(
        "FORMAT",
        "How times are written, such as '%d.%m.%Y %H:%M'. Default: detected; dates that could be"
        " read in two ways are refused.",
    )
    timezone: str | None = read_option(
        "ZONE",
        "Time zone of times that have none, such as Europe/Rome (daylight saving time is handled)"
        " or UTC+1.",
        autocompletion=_zones,
    )
    decimal: str | None = read_option("point|comma", "Decimal separator. Default: detected.")
    thousands: str | None = read_option(
        "point|comma|space|apostrophe|none", "Thousands separator. Default: detected."
    )
    missing: str | None = read_option(
        "NUMBERS",
        "Numbers that mark missing values, such as 0 (METR-LA) or -1,9999; none if no number does.",
    )
    duplicates: str | None = read_option(
        "error|same|first|last|sum|mean",
        "Several rows for one client and time: refuse them (error), accept those with the same"
        " value (same), or use the first, the last, their sum or their mean. Default: same.",
    )
    round_times: str | None = read_option(
        "STEP", "Round times to this step, such as 1min, if they are a few seconds off."
    )
    activity: str | None = read_option(
        "net|sms|call", "Activity to read from raw Telecom Italia records. Default: net."
    )
    coordinates: Path | None = read_option(
        "CSV", "File with the columns client (or cell_id), lng and lat."
    )
    inputs: str | None = read_option(
        "A,B,...",
        "Columns of --inputs-file or of the data file that are known in advance and help to"
        " forecast, such as temperatures, events or prices.",
    )
    inputs_file: Path | None = read_option(
        "FILE",
        "Table with a time column and external inputs, including future values. Default: the"
        " data file. Without a client column, the values hold for all clients.",
    )
    unit: str | None = read_option(
        "TEXT",
        "Unit of the values in tables, plots and the report, such as kWh. Default: the"
        " file's, if it names one.",
    )

    def changes(self) -> dict[str, Any]:
        """The options as changes to the `data` section; None: not given."""
        inputs = None if self.inputs is None else names_in(self.inputs)
        return {**vars(self), "ids": parse_ids(self.ids), "inputs": inputs}

    def data(self) -> Data:
        """The options as data settings."""
        given = {key: value for key, value in self.changes().items() if value is not None}
        texts: dict[str, Any] = {k: str(v) if isinstance(v, Path) else v for k, v in given.items()}
        return Data(**texts)

    def read(self, path: Source) -> Panel:
        """The panel at `path`, read with these options."""
        from fuels.data.readers import read_source

        return read_source(path, self.reading(), self.activity)

    def reading(self) -> PanelOptions:
        """The options as the readers take them."""
        from fuels.data.readers import PanelOptions

        return PanelOptions.of(self.data())


def with_read_options(*without: str) -> Decorator:
    """Replace a command's parameter `read: ReadOptions` by one option per field.

    `without` names fields that make no sense for the command.
    """
    options = {f.name: f.metadata["option"] for f in fields(ReadOptions) if f.name not in without}
    return with_fields("read", ReadOptions, options)


def with_fields(parameter: str, make: type, options: Mapping[str, Any]) -> Decorator:
    """Replace a command's parameter by options, named after fields of the class `make`."""
    hints = get_type_hints(make)
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=hints[name])
        for name, option in options.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def with_options(**given: Any) -> None:
            made = make(**{name: given.pop(name) for name in options})
            command(**given, **{parameter: made})

        parameters: list[Parameter] = []
        for name, own in signature(command, eval_str=True).parameters.items():
            kept = own.replace(kind=Parameter.KEYWORD_ONLY)
            parameters += shared if name == parameter else [kept]
        with_options.__doc__, with_options.__name__ = command.__doc__, command.__name__
        with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate


def parse_ids(text: str | None) -> tuple[str, ...] | None:
    """Ids from `a,b,c` or from `@FILE`, one per line or comma-separated."""
    if text is None:
        return None
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise FuelsError(f"--ids {text}: cannot be read ({reason})") from None
    ids = [word.strip() for line in text.splitlines() for word in line.split(",")]
    named = tuple(dict.fromkeys(word for word in ids if word))
    if not named:
        raise FuelsError("--ids names no client")
    return named


def names_in(text: str) -> tuple[str, ...]:
    """Names from `a,b,c`."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


# Settings whose option is not named after their key, as --rounds is after training.rounds.
_RENAMED = {
    "data.source": "--data",
    "data.start": "--from",
    "data.end": "--to",
    "engine.transport": "--engine",
}


def setting_options() -> dict[str, str]:
    """The name that the option of a setting has, if there is one, by the setting's name."""
    run = Settings()  # other sections have no options, but settings named like an option
    sections = (run.data, run.windows, run.training, run.mixture, Engine())
    names = {
        f"{type(section).__name__.lower()}.{each.name}": f"--{each.name.replace('_', '-')}"
        for section in sections
        for each in fields(section)
    }
    return {"seed": "--seed", "method": "--method", **names, **_RENAMED}


def in_options(message: str, words: Sequence[str]) -> str:
    """An error message that names settings as the user typed them: `--rounds`, training.rounds.

    Only settings whose option is among `words`, the command line: others come from a file.
    """
    typed = {word.partition("=")[0] for word in words}
    for setting, option in setting_options().items():
        if option in typed:
            # A name without a section is an everyday word: replaced only at the beginning.
            name = re.escape(setting)
            pattern = rf"(?<![\w.=]){name}(?![\w.=])" if "." in setting else rf"^{name}\b"
            message = re.sub(pattern, option, message)
    return message
