"""A small network of the external inputs in personal models, next to the weights that they have.

    python benchmarks/input_encoder.py [--data synthetic:net] [--clients 8] [--seeds 3]

Each client trains a network of 8 tanh units on the errors of its personal model, in place of the
weights of experts/input_weights.py or after them. It sees the same columns. Each quarter of the
training part is forecast by a network of the other three; how good that is decides how much of the
network counts, as for the weights. Random inputs and drivers are those of external_inputs.py; a
bent driver raises the series whenever it is far from its own mean, and is given as one column, or
as two: how far it is above and below. The table has the MSE one step ahead on the test part
relative to no inputs, its mean and largest value over the seeds, and the processor time of fitting
one client.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from external_inputs import KINDS, STRENGTH, drive, trained, with_random
from torch import Tensor

from fuels.arrays import Flags, Floats
from fuels.config import Settings, merge, with_preset
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.evaluation.evaluate import targets_in_test
from fuels.experts.history import history_of
from fuels.experts.input_mixture import best_share
from fuels.experts.input_weights import PARTS, added_by_inputs, fit_input_weights
from fuels.experts.personal_model import forecast_chain
from fuels.runs.build import load_dataset
from fuels.storage.models import PersonalModels

UNITS, STEPS, RATE, DECAY = 8, 200, 0.02, 0.01
WAYS = ("weights", "network", "weights, then network")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", nargs="+", default=["synthetic:net"])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| data | input | " + " | ".join(f"{way} | s" for way in WAYS) + " |")
    print("|---|---" + "|---" * 2 * len(WAYS) + "|")
    for source in options.data:
        settings = merge(
            with_preset(Settings(method="solo"), "paper", "benchmark"),
            {
                "data": {"source": source, "clients": options.clients},
                "training": {"rounds": 5},
                "model": {"hidden": 32},
            },
            "benchmark",
        )
        panel = load_dataset(settings).panel
        plain = trained(settings, panel)
        seeds = range(options.seeds)
        cases = {
            f"random {', '.join(kinds)}": [(plain, with_random(panel, kinds, s)) for s in seeds]
            for kinds in (("white",), KINDS)
        }
        for kind in ("smooth", "event"):
            driven = [with_random(drive(panel, kind, s), (kind,), s) for s in seeds]
            cases[f"driver {kind}"] = [(trained(settings, one), one) for one in driven]
        for title, columns in (("one column", 1), ("two columns", 2)):
            driven = [bent(panel, s, columns) for s in seeds]
            cases[f"driver bent, {title}"] = [(trained(settings, one), one) for one in driven]
        for title, given in cases.items():
            found = np.array([compared(*run, one) for run, one in given])  # [seed, way, 2]
            cells = [
                f"{ratio.mean():.3f}, {ratio.max():.3f} | {seconds.mean():.3f}"
                for ratio, seconds in found.transpose(1, 2, 0)
            ]
            print(f"| {source} | {title} | {' | '.join(cells)} |", flush=True)


def bent(panel: Panel, seed: int, columns: int) -> Panel:
    """A driver whose distance from its mean counts, as one input or as two."""
    given = with_random(panel, ("smooth",), seed)
    source, effect = given.inputs["smooth"], STRENGTH * np.nanstd(panel.values, axis=0)
    raised = np.abs(source.values[: panel.length]) * effect
    parts = {"above": np.maximum(source.values, 0.0), "below": np.maximum(-source.values, 0.0)}
    two = {name: replace(source, values=values) for name, values in parts.items()}
    return replace(
        given, values=panel.values + raised, inputs=given.inputs if columns == 1 else two
    )


def compared(dataset: Dataset, models: PersonalModels, panel: Panel) -> list[tuple[float, float]]:
    """For each way, the MSE relative to no inputs, and seconds of fitting for each client."""
    dataset = replace(dataset, panel=panel)
    history, end, first = history_of(dataset), dataset.split.train, models.sample.reach
    begin, last = dataset.split.part("test")
    made = next(islice(forecast_chain(models, history, first, last), 1))
    errors = history.observed[:, first:last] - made
    own, test = slice(0, end - first), slice(begin - first, last - first)

    def weights(_: Floats) -> Floats:
        found = fit_input_weights(history, [made[:, own]], first, end)
        return added_by_inputs(found, history, 1, first, last)

    def network(errors: Floats) -> Floats:
        scales = history.input_scales(tuple(history.inputs), end)
        wanted = [(name, lag) for name in history.inputs for lag in (0, 1, history.period)]
        columns = np.stack(history.input_columns(wanted, scales, first, last), axis=2)
        return certain_network(np.nan_to_num(columns), errors, own)

    def mse(added: Floats) -> float:
        wrong = (errors - added)[:, test]
        return float(np.nanmean(np.where(np.isnan(targets_in_test(dataset)), np.nan, wrong) ** 2))

    found = []
    for steps in ((weights,), (network,), (weights, network)):
        added, started = np.zeros(errors.shape), time.process_time()
        for step in steps:
            added = added + step(errors - added)
        seconds = (time.process_time() - started) / len(errors)
        found.append((mse(added) / mse(np.zeros(errors.shape)), seconds))
    return found


def certain_network(x: Floats, errors: Floats, own: slice) -> Floats:
    """What a network adds at all steps, [client, step]; it is fitted to the errors of `own`."""
    columns, known = torch.from_numpy(x).float(), ~np.isnan(errors[:, own])
    wanted = torch.from_numpy(np.nan_to_num(errors[:, own])).float()
    seen, checked = columns[:, own], np.zeros(known.shape)
    for held in np.array_split(np.arange(known.shape[1]), PARTS):
        others = known.copy()
        others[:, held] = False
        checked[:, held] = outputs(fitted(seen, wanted, others), seen[:, held]).numpy()
    product = np.where(known, checked * errors[:, own], 0.0)
    before = np.pad(product, ((0, 0), (1, 0)))[:, :-1]
    sums = [product, np.where(known, checked**2, 0.0), product**2, product * before]
    share = best_share(known.sum(axis=1), *(one.sum(axis=1) for one in sums))
    made = outputs(fitted(seen, wanted, known), columns).numpy().astype(np.float64)
    return np.asarray(share[:, None] * made)


def fitted(x: Tensor, y: Tensor, used: Flags) -> list[Tensor]:
    """The parts of a network per client, trained on the used steps with Adam."""
    drawn = torch.Generator().manual_seed(0)
    clients, _, columns = x.shape
    inner = torch.randn(1, columns, UNITS, generator=drawn) / columns**0.5
    bias = torch.randn(1, 1, UNITS, generator=drawn)
    parts = [inner.repeat(clients, 1, 1), bias.repeat(clients, 1, 1)]
    parts = [part.requires_grad_() for part in (*parts, torch.zeros(clients, UNITS, 1))]
    mask = torch.from_numpy(used).float()
    count = mask.sum(dim=1).clamp(min=1)
    optimiser = torch.optim.Adam(parts, lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        squares = (((outputs(parts, x) - y) * mask) ** 2).sum(dim=1) / count
        (squares.sum() + DECAY * (parts[2] ** 2).sum()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return [part.detach() for part in parts]


def outputs(parts: list[Tensor], x: Tensor) -> Tensor:
    """[client, step]; 0 where all columns are 0, as for the weights."""
    inner, bias, outer = parts
    return ((torch.tanh(bias + x @ inner) - torch.tanh(bias)) @ outer)[..., 0]


if __name__ == "__main__":
    main()
