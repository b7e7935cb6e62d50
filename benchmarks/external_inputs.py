"""What an external input changes: one that drives the series, and random ones.

    python benchmarks/external_inputs.py [--data PATH] [--clients 24] [--seeds 5] [--local]

Trains personal models once for each service of the embedded data, or for a file. The mixture then
runs with and without inputs, with and without shared sums. A driver adds to every client so many of
its standard deviations, as a temperature or an event would, and the experts see that input. Random
inputs are added to nothing: smooth, white and rare events, one at a time and all three. Errors are
MSE on the test part; the table has the ratio to the same forecasts without inputs, its mean and its
largest value over the seeds.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fuels.config import Engine, Settings, merge, with_preset
from fuels.data.inputs import EVERYONE, with_inputs
from fuels.data.panel import Panel
from fuels.evaluation.evaluate import restricted_to_test, targets_in_test
from fuels.experts import input_mixture
from fuels.experts.ensemble import new_ensemble
from fuels.experts.history import history_of
from fuels.runs.build import Job, build, kept_parameters
from fuels.storage.models import PersonalModels

Floats = NDArray[np.float64]
HORIZONS = (1, 6, 24)
SHARED = (False, True)
KINDS = ("smooth", "white", "event")
STRENGTH = 0.5  # standard deviations of the client per one of the input


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", nargs="+", default=[f"synthetic:{s}" for s in ("net", "sms")])
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--local", action="store_true", help="only without shared sums")
    parser.add_argument("--doubt", type=float, default=input_mixture.DOUBT)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    input_mixture.DOUBT = options.doubt
    print("| data | shared sums | steps ahead | input | MSE without | ratio | largest |")
    print("|---|---|---|---|---|---|---|")
    for source in options.data:
        settings = with_preset(Settings(method="solo"), "best", "benchmark")
        changes = {
            "data": {"source": source, "clients": options.clients},
            "model": {"hidden": 32},
            "training": {"rounds": options.rounds},
        }
        with build(merge(settings, changes, "benchmark"), Engine()) as job:
            job.loop.run([])
            models = kept_parameters(job, job.loop.final_download())
            for line in compare(job, models, options.seeds, (False,) if options.local else SHARED):
                print(f"| {source} | {line} |", flush=True)


def compare(
    job: Job, models: PersonalModels, seeds: int, sharing: tuple[bool, ...]
) -> Iterator[str]:
    """The rows of a table."""
    panel = job.dataset.panel
    for shared in sharing:
        for horizon in HORIZONS:
            plain = error(job, models, panel, horizon, shared)
            for kinds in (*((kind,) for kind in KINDS), KINDS):
                found = [
                    error(job, models, with_random(panel, kinds, s), horizon, shared)
                    for s in range(seeds)
                ]
                yield row(shared, horizon, "random " + ", ".join(kinds), [plain] * seeds, found)
            for kind in ("smooth", "event"):
                driven = [with_random(drive(panel, kind, s), (kind,), s) for s in range(seeds)]
                blind = [replace(one, inputs={}) for one in driven]
                with_it = [error(job, models, one, horizon, shared) for one in driven]
                without = [error(job, models, one, horizon, shared) for one in blind]
                yield row(shared, horizon, f"driver {kind}", without, with_it)


def row(shared: bool, horizon: int, name: str, without: list[float], made: list[float]) -> str:
    ratios = np.array(made) / np.array(without)
    sums = "yes" if shared else "no"
    figures = f"{np.mean(without):.4f} | {ratios.mean():.4f} | {ratios.max():.4f}"
    return f"{sums} | {horizon} | {name} | {figures}"


def random_values(kind: str, steps: int, seed: int) -> Floats:
    """Values with mean 0 and deviation 1, up to 48 steps after the data."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "event":
        return (rng.random(steps) < 0.02).astype(np.float64)
    noise = rng.normal(size=steps)
    if kind == "smooth":
        for k in range(1, steps):
            noise[k] += 0.97 * noise[k - 1]
    return (noise - noise.mean()) / noise.std()


def with_random(panel: Panel, kinds: tuple[str, ...], seed: int) -> Panel:
    made = {
        kind: replace(
            panel,
            values=random_values(kind, panel.length + 48, seed)[:, None],
            ids=EVERYONE,
            coordinates=None,
        )
        for kind in kinds
    }
    return with_inputs(panel, made)


def drive(panel: Panel, kind: str, seed: int) -> Panel:
    """The panel with an effect of the input on every client."""
    effect = STRENGTH * random_values(kind, panel.length + 48, seed)[: panel.length, None]
    if kind == "event":
        effect *= 4
    return replace(panel, values=panel.values + effect * np.nanstd(panel.values, axis=0))


def error(job: Job, models: PersonalModels, panel: Panel, horizon: int, shared: bool) -> float:
    """MSE of the mixture on the test part, on the scale of the models."""
    dataset = replace(job.dataset, panel=panel)
    history = history_of(dataset)
    ensemble = new_ensemble(
        models,
        history,
        dataset.split.train,
        title="personal model",
        sharing=job.settings.sharing if shared else None,
    )
    made = ensemble.run(history, dataset.split.test, horizon)
    assert made is not None
    first, last = dataset.split.part("test")
    truth = np.where(np.isnan(targets_in_test(dataset)), np.nan, history.observed[:, first:last])
    combined = restricted_to_test(dataset, made).mixed.combined
    return float(np.nanmean((truth[:, -combined.shape[1] :] - combined) ** 2))


if __name__ == "__main__":
    main()
