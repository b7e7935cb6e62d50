"""The protection of a run's sums: its identity in the ledger, and a check before training."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from fuels.config import Settings, to_dict
from fuels.errors import FuelsError
from fuels.experts.private_releases import declared_for
from fuels.runs.build import Job, fingerprint
from fuels.sharing.protection import Protection


def refuse_spent(job: Job, folder: Path) -> None:
    """Refuse a run whose sums no budget is left for, before it trains."""
    if (protection := protection_of(job, folder)) is not None:
        declared_for(job.settings.privacy, job.dataset.ids)  # refuses a file that does not fit
        refuse_few(job.settings, len(job.dataset.ids))
        span = job.dataset.panel.times[[0, -1]].astype("datetime64[s]").astype(np.int64)
        protection.refuse_spent(job.settings.sharing, int(span[0]), int(span[1]))


def refuse_few(settings: Settings, clients: int) -> None:
    """Refuse more groups than the clients can fill."""
    groups, least = settings.privacy.groups, settings.sharing.min_clients
    if groups > 1 and clients < groups * least:
        raise FuelsError(
            f"privacy.groups = {groups} needs {groups * least} clients, {least} in each group"
            f" (sharing.min_clients); the data have {clients}"
        )


def protection_of(job: Job, folder: Path | None) -> Protection | None:
    """How the sums of a job are protected; None if they are not.

    A run is identified by its data and settings: an identical one gets the stored messages.
    """
    if not job.settings.privacy.epsilon:
        return None
    known = {"data": fingerprint(job.dataset), "settings": to_dict(job.settings)}
    run = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    return Protection.of(job.settings.privacy, run, job.settings.windows.horizon, folder)
