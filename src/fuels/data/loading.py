"""From settings to the panel that they name."""

from __future__ import annotations

from pathlib import Path

from fuels.config import Settings
from fuels.data.panel import Panel
from fuels.data.readers import read_panel
from fuels.data.synthetic import synthesise

SYNTHETIC = "synthetic:"
SYNTHETIC_CLIENTS = 100  # the embedded federation, of which data.clients draws some


def load_panel(settings: Settings) -> Panel:
    """The panel the settings name, from a file or from the generator."""
    data = settings.data
    if data.source.startswith(SYNTHETIC):
        clients = max(SYNTHETIC_CLIENTS, data.clients)
        panel = synthesise(data.source.removeprefix(SYNTHETIC), clients=clients)
        return panel.select(data.ids) if data.ids else panel
    return read_panel(
        Path(data.source),
        client=data.client_column or None,
        time=data.time_column or None,
        value=data.value_column or None,
        ids=data.ids or None,
        resample=data.resample or None,
        how=data.how or None,
        start=data.start or None,
        end=data.end or None,
        timezone=data.timezone or None,
        missing=data.missing or None,
        activity=data.activity or None,
        coordinates=Path(data.coordinates) if data.coordinates else None,
    )
