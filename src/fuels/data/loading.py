"""The panel that the settings name."""

from __future__ import annotations

from fuels.config import Settings
from fuels.data.panel import Panel
from fuels.data.readers import read_panel
from fuels.data.synthetic import synthesise

SYNTHETIC = "synthetic:"
SYNTHETIC_CLIENTS = 100  # data.clients draws from these


def load_panel(settings: Settings) -> Panel:
    """Read or generate the panel that the settings name."""
    data = settings.data
    if data.source.startswith(SYNTHETIC):
        clients = max(SYNTHETIC_CLIENTS, data.clients)
        panel = synthesise(data.source.removeprefix(SYNTHETIC), clients=clients)
        return panel.select(data.ids) if data.ids else panel
    names = "ids resample how start end timezone missing activity coordinates"
    options = {name: getattr(data, name) or None for name in names.split()}
    return read_panel(
        data.source,
        client=data.client_column or None,
        time=data.time_column or None,
        value=data.value_column or None,
        **options,
    )
