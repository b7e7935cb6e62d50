"""Personal models on disk: one safetensors file that is all a site needs to forecast.

It holds every client's parameters stacked, the scale of its series, and, in the header, what the
windows look like. No pickle, and nothing of the training data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fuels.arrays import Floats, Floats32
from fuels.config import Model, Settings
from fuels.data.calendar import Calendar, listed_holidays
from fuels.data.sample import Sample
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.model.network import Network, Parts, build_network
from fuels.storage.checkpoint import load_state, prefixed, save_state, unprefixed

FORMAT = 3
# Facts that the file holds as they are: of the settings, and of the panel.
CHOSEN = ("encoder", "hidden", "head", "method")
CLOCK = ("step_seconds", "clock_seconds", "timezone", "unit")


@dataclass(frozen=True)
class InputWeights:
    """What the heads of some clients make of external inputs (experts/input_weights.py)."""

    names: tuple[str, ...]
    scales: Floats  # [client, input, 4]: History.input_scales
    heads: Floats  # [client, H, column]


@dataclass(frozen=True)
class PersonalModels:
    """Trained models of some clients, ready to forecast."""

    ids: tuple[str, ...]
    parts: Parts  # [client, size]
    own: dict[str, Floats32]  # what else a method keeps per client, e.g. W_n
    mean: Floats  # [client]
    std: Floats
    sample: Sample
    calendar: Calendar
    encoder: str
    hidden: int
    head: str
    method: str
    step_seconds: int
    clock_seconds: int  # where the steps lie on the clock: Panel.clock_seconds
    timezone: str | None
    unit: str
    inputs: InputWeights | None = None  # None: the models read no external inputs

    @property
    def period(self) -> int:
        return self.sample.period

    @property
    def network(self) -> Network:
        return build_network(self.encoder, self.hidden, self.sample, self.head)

    def take(self, ids: Sequence[str]) -> PersonalModels:
        """The models of some clients."""
        if tuple(ids) == self.ids:
            return self
        position = {client: i for i, client in enumerate(self.ids)}
        rows = np.array([position[client] for client in ids], dtype=np.int64)
        own = self.inputs
        if own is not None:
            own = replace(own, scales=own.scales[rows], heads=own.heads[rows])
        return replace(
            self,
            ids=tuple(ids),
            parts={name: part[torch.from_numpy(rows)] for name, part in self.parts.items()},
            own={name: array[rows] for name, array in self.own.items()},
            mean=self.mean[rows],
            std=self.std[rows],
            inputs=own,
        )

    def tensors(self, client: str) -> dict[str, torch.Tensor]:
        """One client's model under the names torch.nn.GRU and Linear use."""
        if client not in self.ids:
            raise FuelsError(f"there is no model of client {client}")
        return self.network.tensors(self.parts, self.ids.index(client))


def personal_models(
    dataset: Dataset, parts: Parts, own: Mapping[str, Floats32], settings: Settings
) -> PersonalModels:
    """Whatever trained them: forecasts are made on the CPU, so the parts are brought there."""
    return PersonalModels(
        ids=dataset.ids,
        parts={name: part.detach().cpu() for name, part in parts.items()},
        own=dict(own),
        mean=dataset.mean,
        std=dataset.std,
        sample=dataset.sample,
        calendar=dataset.calendar,
        encoder=settings.model.encoder,
        hidden=settings.model.hidden,
        head=settings.model.head,
        method=settings.method,
        **{name: getattr(dataset.panel, name) for name in CLOCK},
    )


def save_models(path: Path, models: PersonalModels) -> None:
    arrays: dict[str, NDArray[Any]] = {"mean": models.mean, "std": models.std}
    arrays |= prefixed("model", {n: p.numpy() for n, p in models.parts.items()})
    arrays |= prefixed("own", models.own)
    if models.inputs is not None:
        found = {"scales": models.inputs.scales, "heads": models.inputs.heads}
        arrays |= prefixed("inputs", found)
    facts = {
        "format": FORMAT,
        "ids": list(models.ids),
        "sample": asdict(models.sample),
        "holidays": sorted(str(day) for day in models.calendar.holidays),
        **{name: getattr(models, name) for name in (*CHOSEN, *CLOCK)},
        **({} if models.inputs is None else {"inputs": list(models.inputs.names)}),
    }
    save_state(path, arrays, facts)


def load_models(path: Path) -> PersonalModels:
    arrays, facts = load_state(path)
    if "encoder" not in facts:
        raise FuelsError(f"{path}: contains no models")
    if facts.get("format") != FORMAT:
        raise FuelsError(
            f"{path}: the models have format {facts.get('format')}, but this version reads {FORMAT}"
        )
    facts = {"head": Model.head, **facts}  # models of 0.1.0 have no other
    parts = {n: torch.from_numpy(np.array(a)) for n, a in unprefixed("model", arrays).items()}
    names, own = tuple(facts.get("inputs", ())), unprefixed("inputs", arrays)
    return PersonalModels(
        ids=tuple(facts["ids"]),
        parts=parts,
        own=unprefixed("own", arrays),
        mean=np.array(arrays["mean"]),
        std=np.array(arrays["std"]),
        sample=_sample(facts["sample"]),
        calendar=listed_holidays(facts["holidays"]),
        inputs=InputWeights(names, own["scales"], own["heads"]) if names else None,
        **{name: facts[name] for name in (*CHOSEN, *CLOCK)},
    )


def _sample(facts: Mapping[str, Any]) -> Sample:
    """A sample from the plain values of its fields."""
    branches = tuple(tuple(branch) for branch in facts["branches"])
    return Sample(**{**facts, "branches": branches, "calendar": tuple(facts["calendar"])})
