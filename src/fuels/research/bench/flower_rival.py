"""(c) Flower's simulation: the eager client code as a ClientApp, in one Ray worker per thread.

What a Flower user would write: a message carries PR_n and NR_n, or the global model, to each
client; its reply carries the prototype, or the client's model. Workers keep nothing in memory, so
a FUELS client's own parts (model, W_n, Adam's memory) live in the Context, as Flower intends.

A round is timed from the moment its first client starts to the moment the server holds all replies
as arrays. The start of Ray and of its workers and the first round, in which they import and load
their data, are left out; so is the time Flower takes to notice that a round begins, up to 0.1 s,
which a round of 100 clients would hardly feel and one of 10 would.

Everything stays on the loopback address, and telemetry is off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuels.arrays import Floats32
from fuels.federation.ray import CLUSTER, QUIET
from fuels.research.bench.eager import (
    Model,
    Start,
    fedavg_epoch,
    flat,
    fuels_epoch,
    new_adam,
    unit_rows,
)
from fuels.research.bench.process import Answer, Endpoint, Order, RivalProcess
from fuels.research.bench.work import Given, Sizes
from fuels.version import not_installed

MISSING = not_installed("Flower", "bench")
ENVIRONMENT = {
    **QUIET,
    CLUSTER: "0",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
RAY = {
    "address": "local",
    "_node_ip_address": "127.0.0.1",
    "include_dashboard": False,
    "log_to_driver": False,
    "logging_level": "error",
}
POLL = 0.01  # seconds between two looks for replies


def available() -> bool:
    return find_spec("flwr") is not None and find_spec("ray") is not None


class Flower:
    """Flower's simulation in a separate process."""

    def __init__(self, sizes: Sizes, threads: int) -> None:
        self.clients = sizes.sample
        self.process = RivalProcess("flower", serve, sizes, threads)

    def turn(self, method: str, round_number: int, given: Given) -> Answer:
        self.process.ask((method, round_number, given))
        return self.process.answer()

    def close(self) -> None:
        self.process.close()


# -- the server, in the rival's process --------------------------------------------------------


def serve(endpoint: Endpoint, sizes: Sizes, threads: int) -> None:
    os.environ.update(ENVIRONMENT)  # read when Ray and Flower are imported
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Any, context: Any) -> None:
        rounds = Rounds(grid, sizes)
        for order in endpoint.orders():
            endpoint.answer(*rounds.play(order))

    resources: Any = {
        "init_args": {**RAY, "num_cpus": threads},
        "client_resources": {"num_cpus": 1},
    }
    run_simulation(server, client_app(sizes), num_supernodes=sizes.sample, backend_config=resources)


class Rounds:
    """Rounds over Flower's grid."""

    def __init__(self, grid: Any, sizes: Sizes) -> None:
        self.grid, self.sizes = grid, sizes
        while len(nodes := list(grid.get_node_ids())) < sizes.sample:
            time.sleep(POLL)
        self.rows: dict[int, int | None] = dict.fromkeys(nodes)  # node: client; known from replies
        self.start = Start(sizes)

    def play(self, order: Order) -> Answer:
        method = order[0]
        replies = self._exchange([self._message(node, *order) for node in self.rows])
        arrays = [reply.content["arrays"].to_torch_state_dict() for reply in replies]
        metrics = [reply.content["facts"] for reply in replies]
        seconds = time.time() - min(facts["started"] for facts in metrics)
        rows = [int(facts["row"]) for facts in metrics]
        for reply, row in zip(replies, rows, strict=True):
            self.rows[reply.metadata.src_node_id] = row
        by_client = [arrays[i] for i in np.argsort(rows)]
        return seconds, self._result(method, by_client)

    def _message(self, node: int, method: str, round_number: int, given: Given) -> Any:
        from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

        content = RecordDict({"order": ConfigRecord({"method": method, "round": round_number})})
        row = self.rows[node]
        if method == "fedavg":
            content["arrays"] = ArrayRecord(self.start.weights)
        elif row is not None and (sides := given.get(self.start.clients[row].id)):
            named = zip(("positive", "negative"), sides, strict=True)
            content["arrays"] = ArrayRecord({n: torch.from_numpy(side) for n, side in named})
        return Message(content=content, dst_node_id=node, message_type="train")

    def _exchange(self, messages: list[Any]) -> list[Any]:
        waiting = set(self.grid.push_messages(messages))
        replies: list[Any] = []
        while waiting:
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    raise RuntimeError(f"a client failed: {reply.error.reason}")
                replies.append(reply)
            time.sleep(POLL)
        return replies

    def _result(self, method: str, arrays: list[Mapping[str, Tensor]]) -> Floats32:
        if method == "fuels":
            return torch.stack([array["prototype"] for array in arrays]).numpy()
        model = Model(self.sizes.hidden)
        rows = []
        for state in arrays:
            model.load_state_dict(state)
            rows.append(flat(model).copy())
        return np.asarray(np.mean(rows, axis=0))


# -- a client, in a Ray worker -----------------------------------------------------------------


@lru_cache(maxsize=1)
def worker_start(sizes: Sizes) -> Start:
    """The worker's data, loaded once."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    return Start(sizes)


def client_app(sizes: Sizes) -> Any:
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Any, context: Any) -> Any:
        return train_client(message, context, sizes)

    return app


def train_client(message: Any, context: Any, sizes: Sizes) -> Any:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    started = time.time()
    start, order = worker_start(sizes), message.content["order"]
    row = int(context.node_config["partition-id"])
    data = start.clients[row]
    sent = message.content.get("arrays")
    received = {} if sent is None else sent.to_torch_state_dict()
    if order["method"] == "fedavg":
        model = Model(sizes.hidden)
        model.load_state_dict(received)
        fedavg_epoch(model, new_adam(list(model.parameters())), data)
        arrays = dict(model.state_dict())
    else:
        personal = Personal(start, data.id)
        personal.load(context.state)
        sides = [received[name].numpy() for name in ("positive", "negative") if name in received]
        given = unit_rows({data.id: sides}, data.id)
        moving = (personal.model, personal.W, personal.adam)
        arrays = {"prototype": fuels_epoch(*moving, data, int(order["round"]), given)}
        personal.save(context.state)
    facts = MetricRecord({"started": started, "row": row})
    content = RecordDict({"arrays": ArrayRecord(arrays), "facts": facts})
    return Message(content=content, reply_to=message)


class Personal:
    """What a FUELS client keeps between rounds, in and out of Flower's Context."""

    def __init__(self, start: Start, client: str) -> None:
        self.model, self.W = start.model(), start.filter(client)
        self.adam = new_adam([*self.model.parameters(), self.W])

    def load(self, state: Any) -> None:
        if "model" not in state:
            return
        self.model.load_state_dict(state["model"].to_torch_state_dict())
        with torch.no_grad():
            self.W.copy_(state["filter"].to_torch_state_dict()["W"])
        memory: dict[int, dict[str, Tensor]] = {}
        for key, value in state["adam"].to_torch_state_dict().items():
            place, name = key.split(".")
            memory.setdefault(int(place), {})[name] = value
        groups = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict({"state": memory, "param_groups": groups})

    def save(self, state: Any) -> None:
        from flwr.app import ArrayRecord

        memory = self.adam.state_dict()["state"]
        state["model"] = ArrayRecord(self.model.state_dict())
        state["filter"] = ArrayRecord({"W": self.W.detach()})
        state["adam"] = ArrayRecord(
            {f"{i}.{name}": value for i, slot in memory.items() for name, value in slot.items()}
        )
