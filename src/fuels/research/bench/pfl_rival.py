"""(d) Apple's pfl: its simulated backend and its federated averaging, with the eager model.

pfl uses several cores by several processes, each simulating a share of the clients, whose sums are
then reduced over the network. Here every thread is one such process with its share of the sample,
and the reduction is left out, because its server would listen on all addresses: pfl is a little
faster here than it can be. A round is timed as the slowest process sees it, from the order to the
updated model: sampling, local training, aggregation and update. Start-up and the first round, in
which pfl also evaluates, are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fuels.arrays import Floats32
from fuels.research.bench.eager import Model, Start, flat
from fuels.research.bench.process import Answer, Endpoint, Order, RivalProcess
from fuels.research.bench.work import PERIOD, Given, Sizes
from fuels.version import not_installed

MISSING = not_installed("pfl", "bench")
NEVER = 10**9


def available() -> bool:
    return find_spec("pfl") is not None


class Pfl:
    """pfl in one process per thread."""

    def __init__(self, sizes: Sizes, threads: int) -> None:
        self.clients = sizes.sample
        shares = np.array_split(np.arange(sizes.sample), min(threads, sizes.sample))
        self.shares = [share.tolist() for share in shares]
        self.processes = [RivalProcess("pfl", serve, sizes, share) for share in self.shares]

    def turn(self, method: str, round_number: int, given: Given) -> Answer:
        for process in self.processes:
            process.ask((method, round_number, given))
        answers = [process.answer() for process in self.processes]
        weights = [len(share) for share in self.shares]
        mean = np.average([model for _, model in answers], axis=0, weights=weights)
        return max(seconds for seconds, _ in answers), mean.astype(np.float32)

    def close(self) -> None:
        for process in self.processes:
            process.close()


# -- in the rival's process --------------------------------------------------------------------


class PflModel(Model):
    """The eager model with the two functions that pfl calls."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Turns:
    """A callback of pfl that answers after each round and waits for the order of the next."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.orders: Iterator[Order] = endpoint.orders()
        self.started = 0.0

    def wait(self) -> bool:
        """Whether another round is wanted, once it is."""
        wanted = next(self.orders, None) is not None
        self.started = time.perf_counter()
        return wanted

    def on_train_begin(self, *, model: Any) -> Any:
        from pfl.metrics import Metrics

        return Metrics()

    def after_central_iteration(
        self, metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        from pfl.metrics import Metrics

        seconds = time.perf_counter() - self.started
        row: Floats32 = flat(model.pytorch_model).copy()
        self.endpoint.answer(seconds, row)
        return not self.wait(), Metrics()

    def on_train_end(self, *, model: Any) -> None:
        """Nothing to tidy up."""


def serve(endpoint: Endpoint, sizes: Sizes, share: Sequence[int]) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    start = Start(sizes)
    clients = [start.clients[row] for row in share]
    users = {one.id: Dataset((one.x.flatten(0, 1), one.y.flatten())) for one in clients}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    model = PflModel(sizes.hidden)
    model.load_state_dict(start.weights)
    central = torch.optim.SGD(model.parameters(), lr=1.0)  # the mean difference, taken as it is
    turns = Turns(endpoint)
    if turns.wait():
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=NEVER,
                evaluation_frequency=NEVER,
                train_cohort_size=len(users),
                val_cohort_size=0,
            ),
            SimulatedBackend(training_data=data, val_data=data),
            PyTorchModel(model, torch.optim.Adam, central),
            NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=0.001, local_batch_size=PERIOD
            ),
            NNEvalHyperParams(local_batch_size=PERIOD),
            callbacks=[turns],
            send_metrics_to_platform=False,
        )
