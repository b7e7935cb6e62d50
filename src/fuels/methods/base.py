"""The base class of all methods.

A method defines what a client computes (`local`), what travels (`uploads`, `download`) and how the
server combines it (`aggregate`). The framework does the rest, the same way for every method: client
selection, threads, transports, checkpoints, evaluation and reports.

A client's model consists of parts ("encoder", "decoder", and any that the method adds). Parts in
`stays` remain on the client between rounds, together with their optimiser state; the others are
installed from the download at the start of each round.
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

from fuels.arrays import Floats32
from fuels.config import Defence, Privacy, Training
from fuels.data.sample import Sample
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.methods.messages import Arrays, Download, Upload
from fuels.model.network import Network, Parts
from fuels.model.optimiser import Update
from fuels.privacy.hidden import hidden_seed
from fuels.training.groups import Batch, Group, Optimiser
from fuels.training.step import Contrast, Step, descend, differentiate, nothing

MODEL = ("encoder", "decoder")
ENCODED = 8_000_000  # encoded values that a group holds at a time: 32 MB


@dataclass(frozen=True)
class Options:
    """A method's options; subclasses add fields with defaults and the source of each value."""


@dataclass(frozen=True)
class Facts:
    """What a method may know about the federation it runs in."""

    network: Network
    sample: Sample  # the layout of a training sample
    train_periods: int  # periods of the training part that have samples
    local_epochs: int
    optimiser: Optimiser
    seed: int
    defence: Defence = field(default_factory=Defence)
    privacy: Privacy = field(default_factory=Privacy)
    # Seeds the noise of a federation's site, so that the server cannot reproduce it. Never sent.
    secret: bytes = field(default=b"", repr=False)
    shared_secret: bytes = field(default=b"", repr=False)  # of all sites; see privacy/hidden.py

    @property
    def period(self) -> int:
        return self.sample.period

    @property
    def start_seed(self) -> int:
        """The seed of the initial model; with privacy.secret, the server does not know it."""
        hidden = self.privacy.secret
        return hidden_seed(self.seed, self.shared_secret) if hidden else self.seed


@dataclass(frozen=True)
class Sent:
    """Declaration of an array that travels: its shape per client and the bound on its entries.

    `rms` bounds the root mean square of a client's entries, if that is tighter than `bound`.
    `raw` marks an array computed from the data rather than by a model: a site sends it only with
    its owner's consent.
    """

    shape: tuple[int, ...]
    bound: float | None = None
    raw: bool = False
    rms: float | None = None


class Server(Protocol):
    """The server's state between rounds; `state` and `load` save and restore it."""

    def state(self) -> dict[str, NDArray[Any]]: ...

    def load(self, state: Mapping[str, NDArray[Any]]) -> None: ...


class NoServer:
    """For methods without server state."""

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        return


class GlobalModel:
    """For methods whose server holds one model, or some parts of one."""

    def __init__(self, parts: Arrays) -> None:
        self.parts = parts
        self.left_out: tuple[str, ...] = ()  # clients of the latest round

    def state(self) -> dict[str, NDArray[Any]]:
        return dict(self.parts)

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.parts = {name: np.asarray(value) for name, value in state.items()}


class Method(ABC):
    """Base of all methods; the module's docstring describes the division of labour."""

    name: ClassVar[str]
    title: ClassVar[str]
    Options: ClassVar[type[Options]] = Options
    stays: ClassVar[tuple[str, ...]] = MODEL
    losses: ClassVar[tuple[str, ...]] = ("prediction",)  # that training reports
    # Whether the evaluated model is the one after aggregation, not the client's after training.
    evaluate_after_aggregation: ClassVar[bool] = False
    one_model: ClassVar[bool] = False  # the same model is evaluated for all clients
    # Whether `aggregate` needs only the mean of the uploads, weighted by samples, so that sites can
    # send masked sums (privacy.masked).
    only_mean: ClassVar[bool] = False
    # Defaults of the `training` section. The FUELS paper states the optimiser and no share of
    # clients per round, so all take part.
    own_optimiser: ClassVar[Optimiser] = Optimiser("adam", 0.001)
    own_selection: ClassVar[float] = 1.0
    # A note for readers of a comparison; {name} is replaced by that option's value.
    remark: ClassVar[str] = ""
    # What a client sends and receives, in words for readers of a report.
    sends: ClassVar[str] = "the arrays that its method declares"
    receives: ClassVar[str] = "the arrays that its method declares"

    def __init__(self, options: Any, facts: Facts) -> None:
        self.options = options
        self.facts = facts
        self.check()

    def check(self) -> None:
        """Refuse invalid options."""
        return

    def check_data(self, dataset: Dataset) -> None:
        """Refuse unsuitable data. Called where the data are: never on a server of many sites."""
        return

    @classmethod
    def complete(cls, training: Training) -> Training:
        """The training settings with the method's defaults filled in."""
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

    def initial_parts(self, client: str) -> dict[str, Floats32]:
        """Initial values of a client's parts beyond the model, [size] each."""
        return {}

    @property
    def shift(self) -> float:
        """Lower bound of the temporal shift's share; 1: no augmentation."""
        return 1.0

    @abstractmethod
    def local(self, group: Group, download: Download) -> Arrays:
        """Train the group for one round; returns its upload, arrays [client, ...]."""

    def model(self, group: Group, download: Download) -> Parts:
        """The model that is evaluated for each client, [client, size] per part."""
        if self.evaluate_after_aggregation:
            group.install(download.shared)
        return {name: group.parts[name] for name in MODEL}

    # -- what travels --------------------------------------------------------------------------

    @abstractmethod
    def uploads(self, round_number: int) -> dict[str, Sent]:
        """Declaration of every array that a client uploads in a round. Only its sample count may
        leave a site as well, if `counts` allows it."""

    def counts(self, round_number: int) -> bool:
        """Whether clients also send the number of samples they trained on, as weights."""
        return False

    def downloads(self) -> dict[str, Sent]:
        """Declaration of every array that a client may receive; a site accepts no other."""
        return {}

    # -- server --------------------------------------------------------------------------------

    def server(self, clients: Sequence[str]) -> Server:
        """The server's state before the first round."""
        return NoServer()

    def aggregate(self, server: Any, upload: Upload) -> None:
        """Update the server's state with a round's uploads."""
        return

    def left_out(self, server: Any) -> Sequence[str]:
        """Clients whose latest upload `aggregate` did not use because it is far from the others."""
        return ()

    def useless(self, server: Any) -> Sequence[str]:
        """The clients of `left_out` that count towards the exclusion of their site."""
        return self.left_out(server)

    def download(self, server: Any, clients: Sequence[str]) -> Download:
        """What these clients receive at the start of a round."""
        return Download()

    # -- shared pieces -------------------------------------------------------------------------

    def sent_parts(self, names: Sequence[str]) -> dict[str, Sent]:
        """Declaration of whole parts of the model."""
        return {name: Sent((self.facts.network.sizes[name],)) for name in names}

    def fit(self, group: Group, names: Sequence[str] = MODEL, epochs: int | None = None) -> None:
        """Local epochs on the prediction loss, updating the named parts."""
        self.descend(group, group.batches(epochs or self.facts.local_epochs), names)

    def descend(
        self,
        group: Group,
        batches: Iterable[Batch],
        names: Sequence[str],
        contrast: Contrast = nothing,
        use: Callable[[Batch, Tensor], None] | None = None,
    ) -> None:
        """One optimiser step of the named parts per batch; `use` receives the encoded rows.

        A client takes as many steps as memory allows before the next client starts.
        """
        for several in in_memory(batches, group.network.width):
            steps = [Step(b, self.updates(group, b, names), contrast) for b in several]
            results = descend(group.network, group.parts, steps)
            for batch, (encoded, terms) in zip(several, results, strict=True):
                group.record(batch, **terms)
                if use is not None:
                    use(batch, encoded)

    def updates(self, group: Group, batch: Batch, names: Sequence[str]) -> dict[str, list[Update]]:
        """The operations that apply the gradient to each named part."""
        return group.updates(names, batch.active)

    def gradient(self, group: Group, batch: Batch, parts: Parts) -> tuple[Tensor, Parts]:
        """L_pred of one batch [client] and its gradient, at the given parts."""
        return differentiate(group.network, parts, MODEL, batch)


def in_memory(batches: Iterable[Batch], width: int) -> Iterator[list[Batch]]:
    """Batches in order, in lists that fit into memory when encoded."""
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
    """Refuse values below `least`."""
    for name in names:
        if not getattr(options, name) >= least:
            raise FuelsError(
                f"options.{name} must be at least {least}; it is {getattr(options, name)}"
            )


def positive(options: Options, *names: str) -> None:
    """Refuse values of 0 or less."""
    for name in names:
        if not getattr(options, name) > 0:
            raise FuelsError(f"options.{name} must be positive; it is {getattr(options, name)}")


def one_of(options: Options, name: str, *choices: str) -> None:
    """Refuse a value that is none of the choices."""
    if (value := getattr(options, name)) not in choices:
        raise FuelsError(f"options.{name} must be {' or '.join(choices)}, not {value}")


def stacked(parts: Parts, names: Sequence[str]) -> Arrays:
    """Parts [client, size] as arrays for an upload."""
    return {name: parts[name].detach().cpu().numpy().copy() for name in names}


def moved(parts: Parts, direction: Parts, distance: float) -> Parts:
    """The parts after a plain step of size `distance` along `direction`."""
    return {name: parts[name] + distance * direction[name] for name in direction}


def weighted_mean(rows: Floats32, weights: NDArray[Any]) -> Floats32:
    """Mean of rows [client, size] with weights [client], summed in double precision."""
    total = np.zeros(rows.shape[1])
    # Row by row: converting all rows at once would take three times the memory.
    for row, share in zip(rows, weights / weights.sum(), strict=True):
        total += share * row
    return total.astype(np.float32)


def tensor(array: Floats32, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
