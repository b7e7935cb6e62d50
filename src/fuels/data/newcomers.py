"""Newcomers: a share of the clients that has only the end of its training part.

    data.newcomers = "0.5@7"   half of the clients have only the last 7 periods of training

The full history decides which clients take part, and only the seed which of them are newcomers. So
the same clients are evaluated on the same test days whatever the length of their history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fuels.checks import newcomer_share
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError

LEAST = 1  # periods a newcomer needs to learn from, in addition to those that feed the windows
_STREAM = 7  # of random numbers


def newcomers(ids: Sequence[str], share: float, seed: int) -> tuple[str, ...]:
    """The newcomers among sorted ids: at least one client, and not all."""
    count = min(max(1, round(share * len(ids))), len(ids) - 1)
    drawn = np.random.default_rng([seed, _STREAM]).permutation(len(ids))[:count]
    return tuple(ids[i] for i in sorted(drawn))


def shorten_histories(dataset: Dataset, text: str, seed: int) -> Panel:
    """The panel of a dataset, without the newcomers' earlier training periods."""
    share, periods = newcomer_share(text)
    reach, period = dataset.sample.reach_periods, dataset.period
    if len(dataset.ids) < 2:
        raise FuelsError(f"data.newcomers {text} needs at least 2 clients")
    if periods < reach + LEAST:
        raise FuelsError(
            f"data.newcomers {text}: {periods} periods are too few for windows that look back"
            f" {reach}; at least {reach + LEAST} are needed, or shorter windows.lags"
        )
    begin = max(0, dataset.split.train - periods * period - dataset.offset)
    new = np.isin(dataset.ids, newcomers(dataset.ids, share, seed))
    values = dataset.panel.values.copy()
    values[:begin, new] = np.nan
    return replace(dataset.panel, values=values)
