"""The panel that the settings name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fuels.config import Data, Settings
from fuels.data.input_files import Table, add_inputs, check_names
from fuels.data.panel import Panel
from fuels.data.readers import PanelOptions, read_source
from fuels.data.synthetic import synthesise
from fuels.data.tables import panel_from_frame
from fuels.errors import FuelsError

SYNTHETIC = "synthetic:"
SYNTHETIC_CLIENTS = 100  # data.clients draws from these


def load_panel(settings: Settings, step: int | None = None, *, strict: bool = True) -> Panel:
    """Read or generate the panel that the settings name, with its external inputs.

    `step` in seconds, if it is known; `strict` refuses data without one of the inputs.
    """
    data = settings.data
    check_names(data)
    places = [data.inputs_file] if data.inputs_file else []
    if data.source.startswith(SYNTHETIC):
        clients = max(SYNTHETIC_CLIENTS, data.clients)
        panel = synthesise(data.source.removeprefix(SYNTHETIC), clients=clients)
        panel = panel.select(data.ids) if data.ids else panel
    else:
        given = replace(PanelOptions.of(data), step=step)
        panel = read_source(data.source, given, data.activity or None)
        places.append(data.source)
    if not data.inputs:
        return panel
    return add_inputs(panel, data, [Table(place) for place in places], strict=strict)


def load_inputs(panel: Panel, data: Data) -> Panel:
    """The panel with the inputs of the second table that the settings name."""
    tables = [Table(data.inputs_file)]
    if not tables[0].columns & set(data.inputs):
        raise FuelsError(
            f"--inputs-file: {tables[0].name} has none of the inputs that the run was trained with:"
            f" {', '.join(data.inputs)}"
        )
    return add_inputs(panel, data, tables, strict=False)


def for_new_values(data: Data) -> Data:
    """How a run's data are read, for new values: without what restricts the run's own data."""
    return replace(data, start="", end="", ids=(), coordinates="", activity="", inputs_file="")


def frame_panel(frame: Any, data: Data, *, strict: bool = True) -> Panel:
    """The panel of a pandas or polars frame, with its inputs, read as the settings say."""
    given = PanelOptions.of(data)
    given.check()
    panel = given.apply(panel_from_frame(frame, given=given))
    if not data.inputs:
        return panel
    check_names(data)
    return add_inputs(panel, data, [Table(frame, "frame")], strict=strict)


def frame_inputs(frame: Any, data: Data, panel: Panel) -> Panel:
    """The panel with the inputs in a frame, such as future ones."""
    return add_inputs(panel, data, [Table(frame, "X_df")], strict=False)


def as_setting(option: str, value: str | None) -> str | None:
    """An option that is a data setting, as `Forecaster` takes it; None for others."""
    name = {"from": "start", "to": "end"}.get(option, option)
    if name == "inputs":
        return "inputs" if value is None else f"inputs=['{value}']"
    if name not in {field.name for field in fields(Data)}:
        return None
    if value is None:
        return f"settings['data']['{name}']"
    return f"settings={{'data': {{'{name}': '{value}'}}}}"
