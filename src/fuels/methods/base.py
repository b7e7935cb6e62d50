"""What a method is.

A method says what a client computes (`local`), what travels (`uploads`, `download`) and what the
server makes of it (`aggregate`). Everything else is not its business: which clients train in a
round, threads, transports, checkpoints, evaluation and reports work alike for all methods.

A client's model consists of parts ("encoder", "decoder", and a method's own). Parts in `stays` are
kept on the client between rounds together with their optimiser's memory; the others are installed
anew from the download at the start of each round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.config import Training
from fuels.data.sample import Sample
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.methods.messages import Arrays, Download, Upload
from fuels.model.network import Network, Parts
from fuels.model.optimiser import Update
from fuels.training.groups import Batch, Group, Optimiser
from fuels.training.step import Contrast, Step, descend, differentiate, nothing

MODEL = ("encoder", "decoder")
ENCODED = 8_000_000  # numbers of encoded rows that a group keeps at a time: 32 MB


@dataclass(frozen=True)
class Options:
    """A method's own settings; subclasses add fields with their defaults and sources."""


@dataclass(frozen=True)
class Facts:
    """What a method may know of the federation it runs in."""

    network: Network
    sample: Sample  # what a sample sees and says
    train_periods: int  # periods of the training part that have samples
    local_epochs: int
    optimiser: Optimiser
    seed: int
    # Of a site of a federation: what the server must not be able to draw again. Never sent.
    secret: bytes = field(default=b"", repr=False)

    @property
    def period(self) -> int:
        return self.sample.period


@dataclass(frozen=True)
class Sent:
    """Declaration of one uploaded array: its shape per client and the bound its entries keep.

    `rms` bounds the root mean square of a client's entries, where that says more than `bound`.
    `raw` marks what is made from the data themselves and not by a model: a site sends it only with
    its owner's consent.
    """

    shape: tuple[int, ...]
    bound: float | None = None
    raw: bool = False
    rms: float | None = None


class Server(Protocol):
    """What the server keeps between rounds; `state` and `load` make it durable."""

    def state(self) -> dict[str, NDArray[Any]]: ...

    def load(self, state: Mapping[str, NDArray[Any]]) -> None: ...


class NoServer:
    """For methods without a server side."""

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        return


class GlobalModel:
    """For methods whose server keeps one model, or some parts of one."""

    def __init__(self, parts: Arrays) -> None:
        self.parts = parts

    def state(self) -> dict[str, NDArray[Any]]:
        return dict(self.parts)

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.parts = {name: np.asarray(value) for name, value in state.items()}


class Method(ABC):
    """Base of all methods; see the module's docstring for the division of labour."""

    name: ClassVar[str]
    title: ClassVar[str]
    Options: ClassVar[type[Options]] = Options
    stays: ClassVar[tuple[str, ...]] = MODEL
    losses: ClassVar[tuple[str, ...]] = ("prediction",)  # that training reports
    # The model that counts is the client's after training, or what aggregation gave it.
    evaluated: ClassVar[str] = "after training"
    one_model: ClassVar[bool] = False  # all clients are judged by the same model
    # What `training` leaves open: the FUELS paper's optimiser, and all clients in every round, for
    # it names no share of them.
    own_optimiser: ClassVar[Optimiser] = Optimiser("adam", 0.001)
    own_selection: ClassVar[float] = 1.0
    # What the reader of a comparison should know of it; {name} stands for an option's value.
    remark: ClassVar[str] = ""

    def __init__(self, options: Any, facts: Facts) -> None:
        self.options = options
        self.facts = facts
        self.check()

    def check(self) -> None:
        """Refuse options that cannot work."""
        return

    def check_data(self, dataset: Dataset) -> None:
        """Refuse data that it cannot learn from; a server, which has none, does not ask."""
        return

    @classmethod
    def complete(cls, training: Training) -> Training:
        """The training settings with what they leave open taken from the method's own."""
        own = cls.own_optimiser
        if not training.optimiser:
            momentum = training.momentum or own.momentum
            training = replace(training, optimiser=own.kind, momentum=momentum)
        return replace(
            training,
            learning_rate=training.learning_rate or own.learning_rate,
            selection=training.selection or cls.own_selection,
        )

    # -- client --------------------------------------------------------------------------------

    def initial_parts(self, client: str) -> dict[str, NDArray[np.float32]]:
        """A client's own parts beyond the model, at its start, [size] each."""
        return {}

    @property
    def shift(self) -> float:
        """Lower end of the temporal shift's share; 1 where a method augments nothing."""
        return 1.0

    @abstractmethod
    def local(self, group: Group, download: Download) -> Arrays:
        """Train the group for its round; returns what it uploads, arrays [client, ...]."""

    def model(self, group: Group, download: Download) -> Parts:
        """The model each client is judged by, [client, size] per part."""
        if self.evaluated == "after aggregation":
            group.install(download.shared)
        return {name: group.parts[name] for name in MODEL}

    # -- what travels --------------------------------------------------------------------------

    @abstractmethod
    def uploads(self, round_number: int) -> dict[str, Sent]:
        """Declaration of all arrays that a client uploads in a round; besides them at most its
        number of samples leaves a site, if `counts` says so."""

    def counts(self, round_number: int) -> bool:
        """Whether a client says in a round on how many samples it trained: where they weigh."""
        return False

    def downloads(self) -> dict[str, Sent]:
        """Declaration of all that a client may get. A site accepts nothing else from a server."""
        return {}

    # -- server --------------------------------------------------------------------------------

    def server(self, clients: Sequence[str]) -> Server:
        """The server's state before the first round."""
        return NoServer()

    def aggregate(self, server: Any, upload: Upload) -> None:
        """Take in what the clients of a round sent."""
        return

    def download(self, server: Any, clients: Sequence[str]) -> Download:
        """What these clients get at the start of a round."""
        return Download()

    # -- shared pieces -------------------------------------------------------------------------

    def sent_parts(self, names: Sequence[str]) -> dict[str, Sent]:
        """Declaration of parts of the model that travel whole."""
        return {name: Sent((self.facts.network.sizes[name],)) for name in names}

    def fit(self, group: Group, names: Sequence[str] = MODEL, epochs: int | None = None) -> None:
        """Local epochs on the prediction loss alone, moving the named parts."""
        self.descend(group, group.batches(epochs or self.facts.local_epochs), names)

    def descend(
        self,
        group: Group,
        batches: Iterable[Batch],
        names: Sequence[str],
        contrast: Contrast = nothing,
        use: Callable[[Batch, Tensor], None] | None = None,
    ) -> None:
        """An optimiser step of the named parts for every batch; `use` gets the encoded rows.

        A client takes many steps before the next one starts, as many as the rows have room for.
        """
        for several in in_memory(batches, group.network.width):
            steps = [Step(b, self.updates(group, b, names), contrast) for b in several]
            results = descend(group.network, group.parts, steps)
            for batch, (encoded, terms) in zip(several, results, strict=True):
                group.record(batch, **terms)
                if use is not None:
                    use(batch, encoded)

    def updates(self, group: Group, batch: Batch, names: Sequence[str]) -> dict[str, list[Update]]:
        """What is done for the gradient of each named part."""
        return group.updates(names, batch.active)

    def gradient(self, group: Group, batch: Batch, parts: Parts) -> tuple[Tensor, Parts]:
        """L_pred of one batch [client] and its gradient, at any parts and not only the group's."""
        return differentiate(group.network, parts, MODEL, batch)


def in_memory(batches: Iterable[Batch], width: int) -> Iterator[list[Batch]]:
    """Batches in their order, as many at a time as may be encoded together."""
    held: list[Batch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.views.shape[0] * batch.views.shape[1] * width
        if size >= ENCODED:
            yield held
            held, size = [], 0
    if held:
        yield held


def at_least(least: int, options: Options, *names: str) -> None:
    """Refuse options below `least`."""
    for name in names:
        if not getattr(options, name) >= least:
            raise FuelsError(
                f"options.{name} must be at least {least}, it is {getattr(options, name)}"
            )


def positive(options: Options, *names: str) -> None:
    """Refuse options that are not above 0."""
    for name in names:
        if not getattr(options, name) > 0:
            raise FuelsError(f"options.{name} must be positive, it is {getattr(options, name)}")


def stacked(parts: Parts, names: Sequence[str]) -> Arrays:
    """Parts [client, size] as arrays for an upload."""
    return {name: parts[name].detach().cpu().numpy().copy() for name in names}


def moved(parts: Parts, direction: Parts, distance: float) -> Parts:
    """The parts after a plain step along `direction`."""
    return {name: parts[name] + distance * direction[name] for name in direction}


def weighted_mean(rows: NDArray[np.float32], weights: NDArray[np.int64]) -> NDArray[np.float32]:
    """Mean of rows [client, size] by weights [client], summed in double precision."""
    total = np.zeros(rows.shape[1])
    # Row by row: all rows in double precision at once would be the models of a round twice again.
    for row, share in zip(rows, weights / weights.sum(), strict=True):
        total += share * row
    mean: NDArray[np.float32] = total.astype(np.float32)
    return mean


def tensor(array: NDArray[np.float32], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
