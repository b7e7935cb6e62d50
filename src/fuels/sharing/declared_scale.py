"""The scale of clients, as declared without looking at their data: `privacy.scale`.

MEAN,STD for every client, or a CSV file with the columns client, mean and std.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from fuels.errors import FuelsError

COLUMNS = ("client", "mean", "std")


def is_file(text: str) -> bool:
    return text.endswith(".csv")


def check_scale(text: str) -> None:
    """Refuse what is neither two numbers nor the name of a file; empty: the scale is released."""
    if text and not is_file(text):
        both(text)


def both(text: str) -> tuple[float, float]:
    """MEAN,STD."""
    try:
        mean, std = (float(part) for part in text.split(","))
    except ValueError:
        mean, std = 0.0, -1.0
    if not (np.isfinite(mean) and np.isfinite(std) and std > 0):
        raise FuelsError(
            "privacy.scale must be MEAN,STD: the usual value of a client and its usual deviation,"
            " such as 120,45, known without looking at the data, or a CSV file with the columns"
            f" {', '.join(COLUMNS)}; it is {text}"
        )
    return mean, std


def declared_scales(text: str, ids: Sequence[str], folder: Path) -> list[tuple[float, float]]:
    """Mean and deviation of each client; a file is relative to a folder."""
    if not is_file(text):
        return [both(text)] * len(ids)
    file = folder / text
    found = _read(file)
    for client in ids:
        mean, std = found.get(client, (np.nan, np.nan))
        if not (np.isfinite(mean) and np.isfinite(std) and std > 0):
            raise FuelsError(
                f"{file.name}: client {client} needs a row with its mean and a std above 0, known"
                " without looking at the data"
            )
    return [found[client] for client in ids]


def _read(file: Path) -> dict[str, tuple[float, float]]:
    if not file.is_file():
        raise FuelsError(f"{file.name}: cannot be read (no such file)")
    try:
        table = pl.read_csv(file, schema_overrides={"client": pl.String})
        columns = (table[name] for name in COLUMNS)
        ids, *numbers = (column.to_list() for column in columns)
        rows = zip(ids, *numbers, strict=True)
        found = {client: (_number(mean), _number(std)) for client, mean, std in rows}
    except OSError as error:
        raise FuelsError(f"{file.name}: cannot be read ({error.strerror or 'damaged'})") from None
    except (pl.exceptions.PolarsError, ValueError, TypeError):
        raise FuelsError(
            f"{file.name}: not a CSV file with the columns {', '.join(COLUMNS)}"
        ) from None
    if len(found) < len(ids):
        raise FuelsError(f"{file.name}: a client has two rows")
    return found


def _number(value: object) -> float:
    return float("nan") if value is None else float(str(value))
