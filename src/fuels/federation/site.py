"""A site: the process that holds some clients' data and trains their models, stacked.

On one machine a single site holds all clients; across organisations there are many sites. A site
shares only its method's declared uploads and, where allowed, error figures. It trains its clients
in small groups, one thread per group. Results do not depend on the number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fuels.arrays import Floats, Floats32, Integers
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.scores import errors
from fuels.kernels.dispatch import prepare_thread
from fuels.methods.base import MODEL, Method
from fuels.methods.messages import Download, Upload, concatenate
from fuels.model.network import Parts
from fuels.training.groups import Group, GroupData, Slots, targets_ahead, values_ahead

HELD = 7  # last periods of training that stand in for a missing validation part
GROUP = 32  # most clients in a group: enough to amortise Python's overhead

T = TypeVar("T")


@dataclass(frozen=True)
class Report:
    """Error figures of a round at one site, one number per client."""

    clients: tuple[str, ...]
    losses: dict[str, Floats]  # mean training losses, [client]
    val_mse: Floats  # [client], NaN without a validation part
    val_mae: Floats
    # Spent on validation after training.
    evaluation_seconds: float = field(default=0.0, kw_only=True)

    def of(self, clients: Sequence[str]) -> Report:
        """The figures of these clients, in the report's order."""
        wanted = set(clients)
        rows = [i for i, client in enumerate(self.clients) if client in wanted]
        return Report(
            clients=tuple(self.clients[i] for i in rows),
            losses={name: values[rows] for name, values in self.losses.items()},
            val_mse=self.val_mse[rows],
            val_mae=self.val_mae[rows],
        )


class Site:
    """Clients with their data, models and optimiser memory."""

    def __init__(
        self,
        dataset: Dataset,
        method: Method,
        *,
        keep: str = "best",
        threads: int = 1,
        device: str = "cpu",
    ) -> None:
        self.dataset, self.method = dataset, method
        self.network = method.facts.network
        self.device = torch.device(device)
        self.threads = threads
        self.pool: ThreadPoolExecutor | None = None  # reused: its threads own the kernels' memory
        self.ids = dataset.ids
        self.position = {client: i for i, client in enumerate(self.ids)}
        first, last = dataset.split.part("val")
        self.keep_best = keep == "best" and last > first
        self.parts, self.slots = self._start()
        self.best_mse = np.full(len(self.ids), np.inf)
        self.best_round = np.zeros(len(self.ids), dtype=np.int64)
        self.changed = np.ones(len(self.ids), dtype=np.bool_)  # rows of `state`, in this round
        self.best: Parts = {}
        if self.keep_best and not method.one_model:
            self.best = self._expand(self.network.initial(method.facts.start_seed))

    # -- rounds --------------------------------------------------------------------------------

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[Upload, Report]:
        """Begin a round: train the named clients locally."""
        self.changed = np.zeros(len(self.ids), dtype=np.bool_)

        def work(index: Integers) -> tuple[Upload, Report]:
            group = self.group(index, round_number)
            arrays = self.method.local(group, download)
            self._store(group, index)
            counted = self.method.counts(round_number)
            upload = Upload(group.ids, arrays, group.data.samples if counted else None)
            losses = group.mean_losses()
            if self.method.evaluate_after_aggregation:
                nothing = np.full(len(index), np.nan)
                return upload, Report(group.ids, losses, nothing, nothing)
            return upload, self._evaluate(group, index, download, losses, round_number)

        uploads, reports = zip(*self._in_groups(work, self._rows(clients)), strict=True)
        seconds = sum(report.evaluation_seconds for report in reports)
        parallel = min(self.threads, len(reports))
        return concatenate(uploads), replace(join(reports), evaluation_seconds=seconds / parallel)

    def evaluate(self, round_number: int, download: Download) -> Report:
        """Validation error of every client's model after aggregation."""

        def work(index: Integers) -> Report:
            group = self.group(index, round_number)
            return self._evaluate(group, index, download, {}, round_number)

        return join(self._in_groups(work, np.arange(len(self.ids))))

    def models(self, download: Download) -> Parts:
        """The model kept for every client, [client, size] per part.

        Personal models: the one from the client's best round on its validation part. Otherwise (a
        client that was never evaluated, or a method with one model for all): `download` combined
        with the parts that stay on the client.
        """
        evaluated = self.best_round > 0
        if self.best and evaluated.all():
            return self.best

        # Filled group by group: concatenating pieces at the end would hold the models twice.
        sizes = self.network.sizes
        last = {name: torch.empty(len(self.ids), sizes[name], device=self.device) for name in MODEL}

        def work(index: Integers) -> None:
            parts = self.method.model(self.group(index, 0), download)
            rows = torch.from_numpy(index).to(self.device)
            for name, part in last.items():
                part[rows] = parts[name].detach()

        self._in_groups(work, np.arange(len(self.ids)))
        if self.best:
            known = torch.from_numpy(evaluated).to(self.device).unsqueeze(1)
            return {name: torch.where(known, self.best[name], last[name]) for name in MODEL}
        return last

    def forecast(self, models: Parts, part: str) -> Floats32:
        """One-step forecasts of a part, normalised, [client, step]."""
        first, last = self.dataset.split.part(part)

        def work(index: Integers) -> Floats32:
            chosen = {name: value[index].to(self.device) for name, value in models.items()}
            return self._predict(chosen, index, first, last)[:, :, 0]

        return np.concatenate(self._in_groups(work, np.arange(len(self.ids))))

    # -- state ---------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything the next round depends on."""
        arrays: dict[str, NDArray[Any]] = {k: v.cpu().numpy() for k, v in self._tensors().items()}
        return arrays | {"best_mse": self.best_mse, "best_round": self.best_round}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(state[name]))
        self.changed[:] = True
        self.best_mse = np.array(state["best_mse"])
        self.best_round = np.array(state["best_round"])

    # -- inside --------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of `state`, in place."""
        tensors = {f"parts.{name}": part for name, part in self.parts.items()}
        tensors |= {f"best.{name}": part for name, part in self.best.items()}
        for name, slot in self.slots.items():
            tensors |= {f"slots.{name}.{key}": value for key, value in slot.items()}
        return tensors

    def _start(self) -> tuple[Parts, Slots]:
        """Initial values of the parts that stay on the clients, and of their optimiser state."""
        method = self.method
        common = self.network.initial(method.facts.start_seed)
        parts = self._expand({name: common[name] for name in method.stays if name in common})
        own = [method.initial_parts(client) for client in self.ids]
        for name in own[0] if own else ():
            stacked = np.stack([row[name] for row in own])
            parts[name] = torch.from_numpy(stacked).to(self.device)
        slots = {name: method.facts.optimiser.fresh(part) for name, part in parts.items()}
        return parts, slots

    def _expand(self, rows: Mapping[str, Floats32]) -> Parts:
        return {
            name: torch.from_numpy(row).to(self.device).repeat(len(self.ids), 1)
            for name, row in rows.items()
        }

    def _rows(self, clients: Sequence[str]) -> Integers:
        unknown = [client for client in clients if client not in self.position]
        if unknown:
            raise FuelsError(f"client {unknown[0]} is not a client of this site")
        return np.array([self.position[client] for client in clients], dtype=np.int64)

    def _in_groups(self, work: Callable[[Integers], T], rows: Integers) -> list[T]:
        """`work` on groups of clients, in the order of the rows."""
        # Every thread gets the same number of equal groups, so that all finish together. No
        # operation mixes clients, so the grouping does not change any result.
        if not len(rows):
            return []
        count = min(len(rows), self.threads * -(-len(rows) // (self.threads * GROUP)))
        groups = np.array_split(rows, count)
        # A pool even for one thread: thread settings must not leak into the caller's.
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads, initializer=prepare_thread)
        return list(self.pool.map(work, groups))

    def group(self, index: Integers, round_number: int) -> Group:
        facts = self.method.facts
        rows = torch.from_numpy(index).to(self.device)
        return Group(
            ids=[self.ids[i] for i in index],
            data=GroupData(self.dataset, index, self.device),
            network=self.network,
            parts={name: part[rows] for name, part in self.parts.items()},
            slots={
                name: {key: value[rows] for key, value in slot.items()}
                for name, slot in self.slots.items()
            },
            optimiser=facts.optimiser,
            seed=facts.seed,
            round_number=round_number,
            shift=self.method.shift,
            own_error=partial(self.own_error, index),
        )

    def _store(self, group: Group, index: Integers) -> None:
        """Store what stays on the clients; groups are disjoint, so threads never conflict."""
        rows = torch.from_numpy(index).to(self.device)
        self.changed[index] = True
        for name, part in self.parts.items():
            part[rows] = group.parts[name]
            for key, value in self.slots[name].items():
                value[rows] = group.slots[name][key]

    def _evaluate(
        self,
        group: Group,
        index: Integers,
        download: Download,
        losses: dict[str, Floats],
        round_number: int,
    ) -> Report:
        """Validation error of the group's models; stores each model that is the best so far.

        With several steps ahead the error is the mean over all heads.
        """
        begun = time.perf_counter()
        first, last = self.dataset.split.part("val")
        if last == first:
            nothing = np.full(len(index), np.nan)
            return Report(group.ids, losses, nothing, nothing)
        models = self.method.model(group, download)
        mse, mae = self._errors(models, index, first, last)
        if self.best:
            better = np.flatnonzero(mse < self.best_mse[index])
            rows = torch.from_numpy(index[better]).to(self.device)
            for name, part in self.best.items():
                part[rows] = models[name][torch.from_numpy(better).to(self.device)].detach()
            self.changed[index[better]] = True
            self.best_mse[index[better]] = mse[better]
            self.best_round[index[better]] = round_number
        return Report(group.ids, losses, mse, mae, evaluation_seconds=time.perf_counter() - begun)

    @torch.no_grad()
    def _errors(
        self, models: Parts, index: Integers, first: int, last: int
    ) -> tuple[Floats, Floats]:
        """MSE and MAE of models on the steps first..last-1, [client]."""
        predicted = self._predict(models, index, first, last)
        actual = values_ahead(self.dataset, index, first, last)
        target = targets_ahead(self.dataset, index, first, last)
        flat = len(index), -1
        return errors(actual.reshape(flat), predicted.reshape(flat), target.reshape(flat))

    def own_error(self, index: Integers, models: Parts) -> Floats:
        """MSE of models on the validation part, or else on the last periods of training."""
        first, last = self.dataset.split.part("val")
        if last == first:
            last = self.dataset.split.train
            reach = self.dataset.sample.reach_periods * self.dataset.period
            first = max(reach, last - HELD * self.dataset.period)
        return self._errors(models, index, first, last)[0]

    def _predict(self, models: Parts, index: Integers, first: int, last: int) -> Floats32:
        """Forecasts of all heads for the steps first..last-1, [client, step, H]."""
        x = torch.from_numpy(self.dataset.inputs(index, first, last)).to(self.device)
        clock = torch.from_numpy(self.dataset.clock(first, last)).to(self.device)
        return self.network.predict_all(models, x, clock).cpu().numpy()


def join(reports: Sequence[Report]) -> Report:
    """Reports of several groups or sites as one."""
    names = {name for report in reports for name in report.losses}
    return Report(
        clients=tuple(client for report in reports for client in report.clients),
        losses={
            name: np.concatenate(
                [r.losses.get(name, np.full(len(r.clients), np.nan)) for r in reports]
            )
            for name in sorted(names)
        },
        val_mse=np.concatenate([report.val_mse for report in reports]),
        val_mae=np.concatenate([report.val_mae for report in reports]),
    )


def check_finite(reports: Sequence[Report], number: int) -> None:
    """Stop if training diverged. The reports of other organisations were checked on arrival."""
    for report in reports:
        for name, values in report.losses.items():
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise FuelsError(
                    f"round {number}: the {name} loss of client {report.clients[bad[0]]} "
                    "is not finite; training diverged, try a smaller learning rate"
                )
