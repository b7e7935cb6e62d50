"""Small data with properties one can state."""

from __future__ import annotations

import numpy as np

from fuels.data.panel import Panel


def make_panel(
    clients: int = 5, days: int = 12, seed: int = 0, period: int = 24, start: str = "2024-01-01"
) -> Panel:
    """Hourly series with a daily cycle of their own each, and noise."""
    rng = np.random.default_rng(seed)
    hours = np.arange(days * period)
    columns = [
        10
        + i
        + (3 + i) * np.sin(2 * np.pi * (hours + 4 * i) / period)
        + rng.normal(0, 0.5, len(hours))
        for i in range(clients)
    ]
    return Panel(
        values=np.stack(columns, axis=1),
        ids=tuple(f"c{i}" for i in range(clients)),
        start=np.datetime64(start, "s"),
        step=np.timedelta64(86400 // period, "s"),
        name="test",
    )


def distributions(count: int, rows: int, width: int, seed: int, spread: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, rows, width)) + spread * rng.normal(size=(count, rows, width))
    weights = np.exp(logits)
    shares: np.ndarray = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
    return shares
