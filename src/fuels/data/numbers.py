"""From text to numbers: decimal marks, groups of thousands, and words for missing values.

All values of a table are written the same way. A way of writing fits if every value can be read in
it. If several fit and give different numbers ("1,234" alone), the user is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import polars as pl

from fuels.arrays import Floats
from fuels.data.sources import Place
from fuels.data.table_options import NOTHING_GIVEN, TableOptions
from fuels.errors import FuelsError

# In small letters.
MISSING_WORDS = (
    *("", "na", "n/a", "n.a.", "n. a.", "#n/a", "#na", "nan", "null", "none", "nil", "\\n"),
    *("-", "--", "---", "–", "—", ".", "?", "missing", "<na>", "k.a.", "k. a."),
    *("#value!", "#div/0!", "#ref!", "#null!", "#num!", "#name?"),
    *("#nv", "#n/d", "#wert!", "#bezug!", "#zahl!", "n/d", "n.d.", "no data"),
)
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_SIGN = r"[+\-]?"


@dataclass(frozen=True)
class Style:
    """How numbers are written."""

    decimal: str
    thousands: str  # empty: digits are not grouped

    @property
    def pattern(self) -> str:
        """What a number looks like; only the first of several groups may be short."""
        point, fraction = re.escape(self.decimal), rf"(?:{re.escape(self.decimal)}\d*)?"
        plain = rf"(?:\d+{fraction}|{point}\d+)"
        if self.thousands:
            plain = rf"(?:[1-9]\d{{0,2}}(?:{re.escape(self.thousands)}\d{{3}})+{fraction}|{plain})"
        return rf"^{_SIGN}{plain}{_EXPONENT}$"

    def parse(self, text: pl.Series) -> pl.Series:
        if self.thousands:
            text = text.str.replace_all(self.thousands, "", literal=True)
        if self.decimal != ".":
            text = text.str.replace_all(self.decimal, ".", literal=True)
        return text.cast(pl.Float64, strict=False)

    def __str__(self) -> str:
        names = {".": "a point", ",": "a comma", " ": "spaces", "'": "apostrophes"}
        grouped = f" and {names[self.thousands]} between thousands" if self.thousands else ""
        return f"{names[self.decimal]} before decimals{grouped}"


PLAIN = Style(".", "")
_STYLES = [Style(d, t) for d, t in product(".,", ("", ",", ".", " ", "'")) if d != t]


def read_numbers(
    columns: Sequence[pl.Series],
    place: Place,
    given: TableOptions = NOTHING_GIVEN,
    *,
    european: bool = False,
) -> tuple[list[Floats], tuple[str, ...]]:
    """Columns as float64 [row], NaN if empty, and notes; anything but a number is an error.

    `european`: the file separates columns by semicolons, as is usual where decimals have a comma,
    so 1.234 may be a thousand.
    """
    texts = {i: _clean(column) for i, column in enumerate(columns) if column.dtype == pl.String}
    style = _style(columns, texts, place, given, european) if texts else PLAIN
    found = []
    for i, column in enumerate(columns):
        if i in texts:
            parsed = _parse(column, texts.pop(i), style, place)
        elif column.dtype.is_numeric() or column.dtype == pl.Null:
            parsed = column.cast(pl.Float64)
        else:
            raise FuelsError(
                f"{place}: column '{column.name}' holds {column.dtype} values, not numbers"
            )
        values = parsed.fill_null(float("nan")).to_numpy()
        found.append(np.asarray(values, dtype=np.float64))
    return found, () if style == PLAIN else (f"numbers were read with {style}",)


def _clean(column: pl.Series) -> pl.Series:
    """Text without words for missing values, in ASCII signs and spaces."""
    text = column.str.strip_chars()
    text = text.set(text.str.to_lowercase().is_in(MISSING_WORDS), None)
    odd = text.str.contains(r"[\u00a0\u2009\u202f\u2212’]")
    if odd.any():
        text = text.str.replace_all(r"[\u00a0\u2009\u202f]", " ")
        text = text.str.replace_all("−", "-", literal=True).str.replace_all("’", "'", literal=True)
    return text


def _parse(column: pl.Series, text: pl.Series, style: Style, place: Place) -> pl.Series:
    parsed = text.cast(pl.Float64, strict=False) if style == PLAIN else style.parse(text)
    wrong = parsed.is_null() & text.is_not_null()
    if style != PLAIN:
        wrong |= ~text.str.contains(style.pattern).fill_null(True)
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise FuelsError(
            f"{place.row(row)} has '{column[row]}' in column '{column.name}',"
            f" which is not a number{_hint(str(text[row]), style)}"
        )
    return parsed


def _hint(text: str, style: Style) -> str:
    if any(re.match(other.pattern, text) for other in _STYLES):
        return f" with {style}: see --decimal and --thousands"
    if re.search(r"[a-zA-Z]", text) and not re.search(r"\d", text):
        return ": correct it, or leave it empty where a value is missing"
    return ""


def _style(
    columns: Sequence[pl.Series],
    texts: dict[int, pl.Series],
    place: Place,
    given: TableOptions,
    european: bool,
) -> Style:
    """The one way of writing that fits all text; PLAIN if none does, for its error message."""
    asked = [
        style
        for style in _STYLES
        if given.decimal_mark in (None, style.decimal)
        and given.thousands_mark in (None, style.thousands)
    ]
    if given.thousands_mark:  # also where no number is large enough to be grouped
        asked = [*asked, *(Style(s.decimal, "") for s in asked)]
    elif given.decimal is None and given.thousands is None and not _unusual(texts, european):
        return PLAIN
    marks = [text.filter(text.str.contains(r"[,. ']")).unique() for text in texts.values()]
    distinct = pl.concat(marks).unique() if marks else pl.Series([], dtype=pl.String)
    fitting = [style for style in asked if distinct.str.contains(style.pattern).all()]
    if not fitting:
        return asked[0] if given.decimal or given.thousands else _nearest(asked, distinct)
    # A style without groups says no more than one with them, and reads the same numbers.
    readings = {style: style.parse(distinct) for style in fitting}
    first = fitting[0]
    for style, numbers in readings.items():
        differs = (numbers != readings[first]).fill_null(True)
        if differs.any():
            text = distinct.filter(differs).sort()[0]
            column = next(
                c for i, c in enumerate(columns) if i in texts and (texts[i] == text).any()
            )
            one, two = readings[first].filter(differs), numbers.filter(differs)
            order = int((distinct.filter(differs) == text).arg_max() or 0)
            raise FuelsError(
                f"{place}: '{text}' in column '{column.name}' could be {one[order]:.10g} or"
                f" {two[order]:.10g}: say which with {_ways(first)} or {_ways(style)}"
            )
    return first


def _ways(style: Style) -> str:
    """The option that chooses a style."""
    words = {" ": "space", "'": "apostrophe", ",": "comma", ".": "point"}
    if style.thousands:
        return f"--thousands={words[style.thousands]}"
    return f"--decimal={words[style.decimal]}"


def _nearest(asked: Sequence[Style], distinct: pl.Series) -> Style:
    """The style that fits most values: the others are then named as wrong."""
    return max(asked, key=lambda style: int(distinct.str.contains(style.pattern).sum()))


def _unusual(texts: dict[int, pl.Series], european: bool) -> bool:
    """Whether numbers may be written in another than the plain way."""
    if any(bool(text.str.contains(r"\d[, ']\d|^[+-]?,\d").any()) for text in texts.values()):
        return True
    return european and looks_grouped(pl.concat(list(texts.values())).drop_nulls())


def looks_grouped(texts: pl.Series) -> bool:
    """Whether all points may stand between thousands: 1.234 and 987, but no 0.5, 1.5 or 1234."""
    points = texts.str.contains(r"\.")
    return bool(points.any()) and bool(
        texts.str.contains(r"^[+-]?(\d{1,3}|[1-9]\d{0,2}(\.\d{3})+)$").all()
    )


def may_be_grouped(values: pl.Series) -> bool:
    """Whether numbers that were read with a decimal point may be thousands: 1.234 and 987."""
    size = values.abs().drop_nulls()
    parts = size.filter(size != size.floor())
    if len(parts) == 0 or not bool((size < 1000).all()) or not bool((parts > 1).all()):
        return False
    thousands = parts * 1000
    return bool(((thousands - thousands.round()).abs() < 1e-6).all())


def is_number_text(text: str) -> bool:
    """Whether text is a number in some way of writing, or a word for a missing one."""
    text = text.strip().replace("\u00a0", " ").replace("\u202f", " ").replace("’", "'")
    text = text.replace("−", "-")
    if text.lower() in MISSING_WORDS and text:
        return True
    try:
        float(text)
    except ValueError:
        return any(re.match(style.pattern, text) for style in _STYLES)
    return True
