"""The shared experts of a run: with a formal guarantee, without one, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuels.config import Sharing
from fuels.experts.private import PrivateExperts
from fuels.experts.private_run_sums import FederatedExperts
from fuels.experts.shared import SharedExperts
from fuels.sharing.protection import Protection
from fuels.storage.models import PersonalModels


def shared_experts(
    sharing: Sharing | None,
    seed: int,
    protection: Protection | None,
    trained: np.datetime64,
    models: PersonalModels,
) -> SharedExperts | None:
    """The shared experts that settings ask for, private ones with `protection`; None if too few."""
    if sharing is None or len(models.ids) < sharing.min_clients:
        return None
    if protection is None:
        return SharedExperts.of(sharing, seed)
    return PrivateExperts.protected(sharing, protection, trained, (models.mean, models.std))


def restored_experts(
    facts: Mapping[str, Any], folder: Path, models: PersonalModels
) -> SharedExperts | None:
    """The shared experts of a mixture saved in `folder`."""
    if "private" in facts:
        kind = FederatedExperts if "sites" in facts else PrivateExperts
        return kind.restored(facts, folder, (models.mean, models.std))
    return SharedExperts.from_facts(facts)
