"""How the user wants a table to be read: names of columns, times, numbers and duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuels.data.clock import Step, parse_step, zone_info
from fuels.errors import FuelsError

DUPLICATES = ("error", "same", "first", "last", "sum", "mean")
# Marks by the words for them, and by themselves.
DECIMALS = {".": ".", "point": ".", ",": ",", "comma": ","}
THOUSANDS = DECIMALS | {"'": "'", "apostrophe": "'", " ": " ", "space": " ", "none": ""}


@dataclass(frozen=True)
class TableOptions:
    """What the user says about a table; None: it is detected."""

    client: str | None = None
    time: str | None = None  # a column, or two: DATE,HOUR
    value: str | None = None
    timezone: str | None = None
    time_format: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    duplicates: str | None = None
    round_times: Step | None = None
    missing: str | float | None = None
    resample: Step | None = None  # rows at irregular times are combined into such steps
    how: str | None = None
    step: int | None = None  # seconds, if it is known: a file may be too short to show it
    inputs: tuple[str, ...] = ()  # columns that are external inputs, not values or clients

    def check(self) -> None:
        """Reject invalid options before reading, which may take long."""
        if self.timezone is not None:
            zone_info(self.timezone, "--timezone")
        if self.round_times is not None:
            parse_step(self.round_times)
        for option, value, known in (
            ("decimal", self.decimal, DECIMALS),
            ("thousands", self.thousands, THOUSANDS),
            ("duplicates", self.duplicates, DUPLICATES),
        ):
            if value is not None and value not in known:
                words = [word for word in known if len(word) > 1]
                marks = [f"'{mark}'" for mark in known if len(mark) == 1 and mark.strip()]
                raise FuelsError(
                    f"--{option} '{value}' is not known: choose {', '.join([*marks, *words])}"
                )
        if self.decimal is not None and self.decimal_mark == self.thousands_mark:
            raise FuelsError("--decimal and --thousands cannot be the same mark")
        missing_numbers(self.missing)

    @property
    def decimal_mark(self) -> str | None:
        return None if self.decimal is None else DECIMALS[self.decimal]

    @property
    def thousands_mark(self) -> str | None:
        return None if self.thousands is None else THOUSANDS[self.thousands]


NOTHING_GIVEN = TableOptions()


def missing_numbers(missing: str | float | None) -> Sequence[float]:
    """The numbers that mark missing values: `0`, `-1,9999`, or `none`."""
    if missing is None or str(missing).strip().lower() == "none":
        return ()
    try:
        return tuple(float(word) for word in str(missing).split(","))
    except ValueError:
        raise FuelsError(
            f"--missing '{missing}' is not a number, several such as -1,9999, or none"
        ) from None
