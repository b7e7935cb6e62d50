"""New values as they are posted: JSON rows, or a CSV file as `fuels forecast --data` takes it."""

from __future__ import annotations

import math
import tempfile
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fuels.config import Data, Settings
from fuels.data.loading import for_new_values, load_panel
from fuels.data.panel import Panel
from fuels.data.readers import PanelOptions
from fuels.data.tables import panel_from_frame
from fuels.errors import FuelsError, options_renamed
from fuels.storage.models import PersonalModels

NAME = "posted values"


def in_iso(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a time such as 2013-11-01T06:00") from None
    return text


class Row(BaseModel):
    """The value of a client at a time; null if it is missing."""

    model_config = ConfigDict(extra="forbid")

    client: str | int
    time: Annotated[str, AfterValidator(in_iso)] = Field(
        description="ISO 8601; without an offset, in the time zone of the run"
    )
    value: float | None = Field(strict=True, allow_inf_nan=False)


class Values(BaseModel):
    """New values, in any order."""

    model_config = ConfigDict(extra="forbid")

    values: list[Row] = Field(min_length=1)


def panel_from_json(body: bytes, settings: Settings, models: PersonalModels) -> Panel:
    """The panel of JSON rows."""
    try:
        rows = Values.model_validate_json(body).values
    except ValidationError as error:
        raise FuelsError(f"{NAME}: {first_problem(error.errors())}") from None
    frame = pl.DataFrame(
        {
            "client": [str(row.client) for row in rows],
            "time": [row.time for row in rows],
            "value": [math.nan if row.value is None else row.value for row in rows],
        },
        schema={"client": pl.String, "time": pl.String, "value": pl.Float64},
    )
    data = for_new_values(settings.data)
    given = replace(
        PanelOptions.of(data),
        client="client",
        time="time",
        value="value",
        timezone=data.timezone or models.timezone,
        time_format=None,
        decimal=None,
        thousands=None,
        step=models.step_seconds,
    )
    with options_renamed(in_config):
        return given.apply(panel_from_frame(frame, name=NAME, given=given))


def panel_from_csv(body: bytes, settings: Settings, models: PersonalModels) -> Panel:
    """The panel of a CSV file, read as the data of the run were."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{NAME}.csv"
        path.write_bytes(body)
        data = replace(for_new_values(settings.data), source=str(path))
        with options_renamed(in_config):
            panel = load_panel(replace(settings, data=data), models.step_seconds, strict=False)
    return replace(panel, name=NAME)


def in_config(option: str, value: str | None) -> str | None:
    """An option that says how data are read, as a setting of the run."""
    known = option in {field.name for field in fields(Data)}
    return f"data.{option} in config.toml" if known else None


def first_problem(errors: Any) -> str:
    """One sentence about the first of pydantic's errors."""
    one = errors[0]
    place = ".".join(str(part) for part in one["loc"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    text = one["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    return f"{place}: {text}{more}" if place else f"{text}{more}"
