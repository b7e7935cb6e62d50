"""Reading external inputs: columns of the data file, or of a second table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuels.config import Data
from fuels.data.files import os_errors
from fuels.data.header import listed
from fuels.data.inputs import EVERYONE, MOST, aligned, with_inputs, without_blank_end
from fuels.data.panel import Panel
from fuels.data.readers import PanelOptions, read_source
from fuels.data.sources import find_files, place_of, table_files
from fuels.data.table_files import column_names
from fuels.data.tables import frame_columns, panel_from_frame
from fuels.errors import FuelsError


class Table:
    """A file or a frame that may have inputs among its columns."""

    def __init__(self, source: Any, name: str = "") -> None:
        self.source, self.frame = source, not isinstance(source, str)
        if self.frame:
            self.name, self.columns = name, frame_columns(source, name)
            return
        with os_errors(source, "cannot be read"):
            files = table_files(find_files(source))
            self.name = place_of([file.name for file in files], [0] * len(files)).name
            self.columns = {column for file in files for column in column_names(file)}

    def read(self, name: str, given: PanelOptions) -> Panel:
        """One input; columns of clients and times that this table does not have are detected."""
        time = (given.time or "").split(",")
        given = replace(
            given,
            value=name,
            inputs=(),
            **dict.fromkeys(("ids", "start", "end", "coordinates", "unit")),
            client=given.client if given.client in self.columns else None,
            time=given.time if given.time in self.columns or set(time) <= self.columns else None,
            missing=None,  # what marks a missing value may be a usual value of an input
            how="mean" if given.resample else None,
        )
        try:
            if self.frame:
                panel = given.apply(panel_from_frame(self.source, name=self.name, given=given))
            else:
                panel = read_source(self.source, given)
        except FuelsError as error:
            raise FuelsError(f"--inputs={name}: {error}") from None
        ids = EVERYONE if panel.ids == (name,) else panel.ids
        return replace(panel, ids=ids, name=self.name)


def add_inputs(panel: Panel, data: Data, tables: Sequence[Table], *, strict: bool) -> Panel:
    """The panel with its inputs, each from the first table that has it.

    `strict` refuses an input that no table has, or has for other clients only.
    """
    given = replace(PanelOptions.of(data), step=panel.step_seconds)
    found: dict[str, Panel] = {}
    for name in data.inputs:
        table = next((table for table in tables if name in table.columns), None)
        if table is not None:
            found[name] = table.read(name, given)
        elif not tables:
            raise FuelsError(
                f"--inputs={name}: the embedded data have no such column; name a file that has it"
                " with --inputs-file"
            )
        elif strict:
            places = " and ".join(f"{t.name} ({listed(sorted(t.columns))})" for t in tables)
            raise FuelsError(f"--inputs={name}: there is no such column in {places}")
        if strict:
            _check_clients(panel, name, found[name])
    panel = with_inputs(without_blank_end(panel), found)
    return _with_notes(panel) if strict else panel


def check_names(data: Data) -> None:
    """Refuse names of inputs that cannot work."""
    names, file = data.inputs, data.inputs_file
    if file and not names:
        raise FuelsError(
            f"--inputs-file {file}: name the columns that are inputs, such as --inputs=temperature"
        )
    if len(set(names)) < len(names):
        raise FuelsError(f"--inputs={','.join(names)}: a name is given twice")
    if len(names) > MOST:
        raise FuelsError(f"--inputs names {len(names)} columns; at most {MOST} can be used")


def _with_notes(panel: Panel) -> Panel:
    """The panel with notes on inputs that lack values; one without any value is refused."""
    notes = []
    for name, values in aligned(panel, 0).items():
        missing = np.isnan(values[:, : panel.length])
        if missing.all():
            place = panel.inputs[name].name
            raise FuelsError(f"--inputs={name}: {place} has no value {panel.span} for any client")
        if missing.any():
            notes.append(
                f"input {name} lacks {100 * missing.mean():.1f} % of its values: where it is"
                " missing, the forecasts do without it"
            )
    return replace(panel, notes=(*panel.notes, *notes))


def _check_clients(panel: Panel, name: str, source: Panel) -> None:
    if source.ids != EVERYONE and not set(source.ids) & set(panel.ids):
        raise FuelsError(
            f"--inputs={name}: {source.name} has values for {listed(source.ids)}, and none for the"
            f" clients of {panel.name}, such as '{panel.ids[0]}'; without a client column, inputs"
            " hold for all clients"
        )
