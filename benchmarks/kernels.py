"""Time of the training kernels: encoder forward and backward and Adam, per client-epoch.

One client-epoch is 37 batches of 48 rows (raw and augmented), hidden 128, two GRUs of 3 steps,
with a given gradient of the result. Groups of G stacked clients are spread over threads, one group
at a time on each. Beside it stand the floor (the same matrix products and nothing else, at the best
rate found) and torch.nn.GRU with torch.optim.Adam, client after client, on a sample. All are
measured in turn, several times; the median and the spread are printed. Below them: the three losses
of FUELS with their gradients, by the kernel and by torch operators, and the divergence of two
prototypes.

    python benchmarks/kernels.py [--threads 2] [--turns 5] [--batches 10] [--rows 48]
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fuels.kernels.gru import Encoding
from fuels.kernels.optimiser import adam_stage
from fuels.kernels.stages import run
from fuels.model.gru import GruShape
from fuels.model.network import Target
from fuels.paper.divergence import pairwise_jsd
from fuels.paper.losses import Inter, Intra, local_losses
from fuels.research.bench.floor import FLOORS, on_threads, one_core

EPOCH = 37
HIDDEN = 128
SHAPE = GruShape(HIDDEN, ((3, 1), (3, 1)))


class Group:
    """Some stacked clients with their data and optimiser state."""

    def __init__(self, clients: int, rows: int, batches: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(clients, SHAPE.size, generator=generator) * 2 - 1
        self.params = uniform / HIDDEN**0.5
        # Clients share both: each goes through all stages before the next one starts.
        self.upstream = torch.randn(1, rows, SHAPE.width, generator=generator)
        self.gradient = torch.empty(1, SHAPE.size)
        self.m = torch.zeros(clients, SHAPE.size)
        self.v = torch.zeros(clients, SHAPE.size)
        self.step = torch.zeros(clients, dtype=torch.int64)
        self.active = torch.ones(clients, dtype=torch.bool)
        self.data = [
            torch.randn(clients, batches, rows, 3, 1, generator=generator) for _ in SHAPE.branches
        ]

    def train(self) -> None:
        for batch in range(self.data[0].shape[1]):
            encoding = Encoding(self.params, [x[:, batch] for x in self.data], SHAPE)
            tape = encoding.take_tape(shared=True)
            stages = [
                encoding.forward(tape, shared=True),
                encoding.backward(tape, self.upstream, self.gradient, shared=True),
                adam_stage(
                    self.params, self.gradient, self.m, self.v, self.step, self.active,
                    lr=1e-3, shared=True,
                ),
            ]  # fmt: skip
            run(stages, encoding.clients)
            encoding.give_tape(tape)


def fused_turn(size: int, threads: int, rows: int, batches: int) -> Callable[[], float]:
    """A turn trains one group on every thread; milliseconds per client-epoch."""
    groups = [Group(size, rows, batches, seed) for seed in range(threads)]

    def turn() -> float:
        seconds = on_threads([group.train for group in groups])
        return 1e3 * seconds / (size * threads) * EPOCH / batches

    return turn


def eager_turn(threads: int, rows: int, batches: int) -> Callable[[], float]:
    """torch.nn.GRU and torch.optim.Adam, one client at a time, torch using all the threads."""
    grus = torch.nn.ModuleList([torch.nn.GRU(1, HIDDEN, batch_first=True) for _ in range(2)])
    adam = torch.optim.Adam(grus.parameters())
    data = torch.randn(batches, rows, 3, 1)

    def turn() -> float:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        for x in data:
            finals = torch.cat([gru(x)[1][0] for gru in grus], dim=1)
            adam.zero_grad()
            finals.backward(finals.detach())
            adam.step()
        one_core()
        return 1e3 * (time.perf_counter() - start) * EPOCH / batches

    return turn


def losses_turn(losses: Callable[..., tuple[Tensor, object]], clients: int = 16) -> float:
    """Microseconds of the thread per client and batch of 24 rows: losses and gradients."""
    generator = torch.Generator().manual_seed(0)
    width, B = 2 * HIDDEN, 24

    def normal(*shape: int) -> Tensor:
        return torch.randn(clients, *shape, generator=generator)

    encoded, decoder, W = normal(2 * B, width), normal(width + 1), normal(B, B)
    moving = [tensor.requires_grad_() for tensor in (encoded.tanh_(), decoder, W)]
    weight = torch.full((clients, B), 1 / B)
    terms = Intra(W, 0.02, weight), Inter(normal(B, width), normal(B, width), 0.02, weight, 5.0)
    target = Target(normal(B, 1), weight.unsqueeze(2), torch.zeros(B, 1, 0))
    start = time.thread_time()
    for _ in range(10):
        total, _ = losses(decoder, encoded, target, *terms)
        torch.autograd.grad(total.sum(), moving)
    return 1e5 * (time.thread_time() - start) / clients


def jsd_turn(threads: int, count: int = 400) -> Callable[[], float]:
    """Microseconds per pair of 24 x 256 prototypes."""
    logits = torch.randn(count, 24, 256, generator=torch.Generator().manual_seed(0)) * 0.3
    P, out = torch.softmax(logits, -1).numpy(), np.zeros((count, count), dtype=np.float32)

    def turn() -> float:
        start = time.perf_counter()
        pairwise_jsd(P, np.arange(count), out, threads)
        return 1e6 * (time.perf_counter() - start) / (count * (count - 1) / 2)

    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    threads, rows, batches = options.threads, options.rows, options.batches
    one_core()
    turns = {f"fused, G = {n}": fused_turn(n, threads, rows, batches) for n in options.sizes}
    turns |= {f"floor: {name}": make(threads, rows, EPOCH) for name, make in FLOORS.items()}
    turns["eager nn.GRU"] = eager_turn(threads, rows, batches)
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in turns.values():
        turn()
    for _ in range(options.turns):
        for name, turn in turns.items():
            times[name].append(turn())
    jsd = jsd_turn(threads)
    jsd()
    named = {"kernel": local_losses, "torch operators": inspect.unwrap(local_losses)}
    losses_us: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(options.turns + 1):
        for name, losses in named.items():
            losses_us[name].append(losses_turn(losses))
    losses_mid = {name: float(np.median(values[1:])) for name, values in losses_us.items()}
    floor = min(float(np.median(times[name])) for name in times if name.startswith("floor"))
    result = {
        name: {
            "ms": float(np.median(values)),
            "low": min(values),
            "high": max(values),
            "times_floor": float(np.median(values)) / floor,
        }
        for name, values in times.items()
    }
    jsd_us = float(np.median([jsd() for _ in range(options.turns)]))
    if options.json:
        found = {"client_epoch": result, "losses_us": losses_mid, "jsd_us_per_pair": jsd_us}
        print(json.dumps(found, indent=2))
        return
    print(f"ms per client-epoch ({EPOCH} batches of {rows} rows), {threads} threads")
    for name, row in result.items():
        span = f"{row['low']:.1f} to {row['high']:.1f}"
        print(f"{name:22} {row['ms']:8.1f}   {span:18} {row['times_floor']:6.2f} x floor")
    for name, value in losses_mid.items():
        print(f"losses and gradients of a batch of 24, by {name}: {value:.1f} us per client")
    print(f"JSD of 24 x 256: {jsd_us:.2f} us per pair")


if __name__ == "__main__":
    main()
