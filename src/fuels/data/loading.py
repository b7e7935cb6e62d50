"""The panel that the settings name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fuels.config import Data, Settings
from fuels.data.panel import Panel
from fuels.data.readers import PanelOptions, read_source
from fuels.data.synthetic import synthesise
from fuels.data.table_options import TableOptions
from fuels.data.tables import panel_from_frame

SYNTHETIC = "synthetic:"
_TABLE = (
    *("timezone", "time_format", "decimal", "thousands", "duplicates", "round_times"),
    *("missing", "resample", "how"),
)
_PANEL = ("ids", "missing", "start", "end", "resample", "how", "coordinates", "unit")
SYNTHETIC_CLIENTS = 100  # data.clients draws from these


def load_panel(settings: Settings, step: int | None = None) -> Panel:
    """Read or generate the panel that the settings name; `step` in seconds, if it is known."""
    data = settings.data
    if data.source.startswith(SYNTHETIC):
        clients = max(SYNTHETIC_CLIENTS, data.clients)
        panel = synthesise(data.source.removeprefix(SYNTHETIC), clients=clients)
        return panel.select(data.ids) if data.ids else panel
    table = replace(table_options(data), step=step)
    return read_source(data.source, table, panel_options(data), data.activity or None)


def table_options(data: Data) -> TableOptions:
    """How the settings say that tables are read."""
    return TableOptions(
        client=data.client_column or None,
        time=data.time_column or None,
        value=data.value_column or None,
        **{name: getattr(data, name) or None for name in _TABLE},
    )


def panel_options(data: Data) -> PanelOptions:
    """What the settings say about a panel after reading."""
    return PanelOptions(**{name: getattr(data, name) or None for name in _PANEL})


def frame_panel(frame: Any, data: Data) -> Panel:
    """The panel of a pandas or polars frame, read as the settings say."""
    table, options = table_options(data), panel_options(data)
    options.check()
    table.check()
    return options.apply(panel_from_frame(frame, given=table))


def as_setting(option: str, value: str | None) -> str | None:
    """An option that is a data setting, as `Forecaster` takes it; None for others."""
    name = {"from": "start", "to": "end"}.get(option, option)
    if name not in {field.name for field in fields(Data)}:
        return None
    if value is None:
        return f"settings['data']['{name}']"
    return f"settings={{'data': {{'{name}': '{value}'}}}}"
