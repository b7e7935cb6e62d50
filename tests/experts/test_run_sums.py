"""The sums of a run at several sites, compared with one machine that has all clients."""

from __future__ import annotations

from fuels.config import Sharing

CLIENTS, HORIZON = 12, 2
SHARED = Sharing(statistics=True, live_mean=True, min_clients=6)
