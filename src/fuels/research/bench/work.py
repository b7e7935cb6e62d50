"""The work that every contender does: the sizes, the data, and the two methods.

A client-epoch is one local epoch of one client: 37 batches of 24 rows at the paper's setting. The
data are the embedded synthetic ones, which have no gaps, so that a batch is a plain mean for the
rivals too. There is no validation part: only a site would evaluate its models on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuels.arrays import Floats32
from fuels.config import Model, Settings
from fuels.data.sample import sample_of
from fuels.data.synthetic import synthesise
from fuels.data.windows import Dataset, prepare
from fuels.errors import FuelsError
from fuels.methods.base import Method
from fuels.runs.build import method_for, train_periods
from fuels.runs.settings import resolve

METHODS = ("fuels", "fedavg")
PERIOD = 24
FIRST = 3  # periods that only feed the windows
SETTINGS = Settings()

# PR_n and NR_n of the sampled clients that have them, [24, d_r] each.
Given = dict[str, tuple[Floats32, Floats32]]


@dataclass(frozen=True)
class Sizes:
    """How much work a turn is; the defaults are the paper's setting."""

    clients: int = 100
    sample: int = 10  # clients of a turn of the slow rivals
    hidden: int = 128
    days: int = 62
    train: int = 40  # days of training
    members: int = 1000  # prototypes to compare
    pairs: int = 2000  # of them, for the slow rival

    def __post_init__(self) -> None:
        least = {"clients": 4, "hidden": 1, "train": FIRST + 1, "members": 2, "pairs": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise FuelsError(f"bench: {name} must be at least {low}, not {getattr(self, name)}")
        if not 1 <= self.sample <= self.clients:
            raise FuelsError(
                f"bench: sample must be 1 to {self.clients}, the number of clients, not"
                f" {self.sample}"
            )

    @property
    def batches(self) -> int:
        """Batches of a client-epoch."""
        return self.train - FIRST


def make_dataset(sizes: Sizes) -> Dataset:
    dataset = prepare(
        synthesise("net", clients=sizes.clients, days=sizes.days),
        sample_of(SETTINGS.windows),
        split=f"{sizes.train}/0/{sizes.days - sizes.train}",
    )
    samples = dataset.target[:, FIRST * PERIOD : dataset.split.train]
    if len(dataset.ids) != sizes.clients or not samples.all():
        raise FuelsError("bench: the synthetic data have gaps; the rivals cannot do the same work")
    return dataset


def make_method(name: str, sizes: Sizes, dataset: Dataset) -> Method:
    settings = replace(SETTINGS, method=name, model=Model(hidden=sizes.hidden))
    return method_for(resolve(settings), train_periods(dataset))
