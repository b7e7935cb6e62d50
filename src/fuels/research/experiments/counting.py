"""What a round costs: numbers sent, divergences and matrix products, counted in a run.

The numbers sent and the divergences computed by the server come from the last round. One client
then trains another round and forecasts the test part under torch's counter of matrix products,
without the compiled kernels, which the counter cannot see into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuels.config import Engine, Settings, to_dict
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.federation.loop import Round
from fuels.kernels.dispatch import use_kernels
from fuels.research.costs import Sizes
from fuels.runs.build import Job
from fuels.runs.settings import resolve
from fuels.storage.config_file import flat
from fuels.training.groups import Group

# Settings that change the numbers multiplied or sent; the formulas hold for the defaults.
FIXED = (
    *("model.encoder", "windows.lags", "windows.calendar", "windows.horizon", "options.steps"),
    *("options.detach", "options.inter", "options.intra", "options.periodic", "options.filter"),
)


@dataclass(frozen=True)
class Counted:
    """What was counted in the last round, per client unless noted."""

    up: float
    down: float
    train: int  # multiply-adds of matrix products
    infer: int
    pairs: int  # divergences, of the server
    server_down: float  # numbers the server sent to all of them
    total_up: float  # of all clients over all rounds
    total_down: float

    @property
    def total(self) -> float:
        return self.total_up + self.total_down


@dataclass
class LastRound:
    """The latest round and what the server computed in it."""

    job: Job
    round: Round | None = None
    pairs: int = 0
    before: int = 0

    def on_round(self, done: Round) -> None:
        self.round = done
        now = int(getattr(self.job.loop.server, "pairs_computed", 0))
        self.pairs, self.before = now - self.before, now


def check_formulas(settings: Settings, dataset: Dataset) -> None:
    """Refuse settings that the formulas do not cover."""
    usual = Settings(method=settings.method)
    values, defaults = (flat(to_dict(resolve(each))) for each in (settings, usual))
    for name in FIXED:
        if values.get(name) != defaults.get(name):
            raise FuelsError(f"the cost formulas hold for the default of {name}; do not change it")
    if settings.training.rounds < 2:
        raise FuelsError(
            "complexity counts a round after the first, in which nothing has come back yet; give"
            " --rounds 2 or more"
        )
    if len(dataset.ids) < 2:
        raise FuelsError("complexity counts what clients share, and there is only one client")
    first, last = dataset.split.part("test")
    if last - first < dataset.period:
        raise FuelsError("complexity forecasts whole periods, and the test part has none")


def sizes_of(job: Job) -> Sizes:
    """The sizes of a real federation, for the formulas."""
    settings, dataset, options = job.settings, job.dataset, job.method.options
    check_formulas(settings, dataset)
    first, last = dataset.split.part("test")
    own = {
        name: getattr(options, name)
        for name in ("head_epochs", "variant", "outer", "inner_steps", "clusters", "week")
        if hasattr(options, name)
    }
    return Sizes(
        clients=len(dataset.ids),
        period=dataset.period,
        hidden=settings.model.hidden,
        head=settings.model.head,
        closeness=settings.windows.closeness,
        periodicity=settings.windows.periodicity,
        train_periods=dataset.split.train // dataset.period,
        test_periods=(last - first) // dataset.period,
        rounds=job.loop.round or settings.training.rounds,
        selection=settings.training.selection,
        local_epochs=settings.training.local_epochs,
        **own,
    )


def count(job: Job, engine: Engine) -> Counted:
    """Train the job to its end, then count one client's next round and its forecasts."""
    seen = LastRound(job)
    job.loop.run([seen])
    done, totals = seen.round, job.loop.totals
    assert done is not None
    client, number = job.dataset.ids[:1], done.number + 1
    download = job.method.download(job.loop.server, client)
    group = _single(job, number)
    use_kernels("plain")
    try:
        train = products(lambda: job.method.local(group, download))
        infer = products(lambda: _forecast(job, number))
    finally:
        use_kernels(engine.kernels)
    return Counted(
        up=done.numbers_up,
        down=done.numbers_down,
        train=train,
        infer=infer,
        pairs=seen.pairs,
        server_down=done.clients * done.numbers_down,
        total_up=totals["numbers_up"],
        total_down=totals["numbers_down"],
    )


def products(work: Any) -> int:
    """Multiply-adds of the matrix products that `work()` executes, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return int(counter.get_total_flops()) // 2  # it counts multiplications and additions


def _single(job: Job, number: int) -> Group:
    """A group with only the first client of the federation."""
    return job.site.group(np.zeros(1, dtype=np.int64), number)


def _forecast(job: Job, number: int) -> None:
    """Forecast the whole periods of the test part with the evaluated model of the first client."""
    dataset, index = job.dataset, np.zeros(1, dtype=np.int64)
    first, last = dataset.split.part("test")
    last = first + (last - first) // dataset.period * dataset.period
    download = job.method.download(job.loop.server, dataset.ids[:1])
    models = job.method.model(_single(job, number), download)
    x = torch.from_numpy(dataset.inputs(index, first, last)).to(job.site.device)
    with torch.no_grad():
        job.site.network.predict(models, x, torch.from_numpy(dataset.clock(first, last)))
