"""What an external input changes: one that drives the series, and random ones.

    python benchmarks/external_inputs.py [--data PATH] [--clients 24] [--seeds 5] [--alone]
        [--horizons 1 6 24]

Trains personal models for each service of the embedded data, or for a file, and again for each
driver. They forecast with and without inputs: alone, in the mixture, and in the mixture with shared
sums. A driver adds to every client so many of its standard deviations, as a temperature or an event
would, and the forecasters see that input. Random inputs are added to nothing: smooth, white and
rare events, one at a time and all three. Errors are MSE on the test part; the table has the ratio
to the same forecasts without inputs, its mean and its largest value over the seeds.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from fuels.arrays import Floats
from fuels.config import Engine, Settings, merge, with_preset
from fuels.data.inputs import EVERYONE, with_inputs
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.evaluation.evaluate import restricted_to_test, targets_in_test
from fuels.experts import input_mixture
from fuels.experts.ensemble import new_ensemble
from fuels.experts.history import history_of
from fuels.experts.personal_model import forecast_chain, with_input_weights
from fuels.runs.build import build, kept_parameters, load_dataset
from fuels.storage.models import PersonalModels

SHARED = (False, True)
KINDS = ("smooth", "white", "event")
STRENGTH = 0.5  # standard deviations of the client per one of the input


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", nargs="+", default=[f"synthetic:{s}" for s in ("net", "sms")])
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--horizons", type=int, nargs="+", default=[1, 6, 24])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--preset", choices=("best", "paper"), default="best")
    parser.add_argument("--local", action="store_true", help="only without shared sums")
    parser.add_argument("--alone", action="store_true", help="only the personal models")
    parser.add_argument("--doubt", type=float, default=input_mixture.DOUBT)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    input_mixture.DOUBT = options.doubt
    kinds = {"personal model": None}
    if not options.alone:
        kinds |= {"mixture": False} | ({} if options.local else {"mixture, shared sums": True})
    print("| data | forecast | steps ahead | input | MSE without | ratio | largest |")
    print("|---|---|---|---|---|---|---|")
    for source in options.data:
        settings = with_preset(Settings(method="solo"), options.preset, "benchmark")
        changes = {
            "data": {"source": source, "clients": options.clients},
            "model": {"hidden": options.hidden},
            "training": {"rounds": options.rounds},
        }
        chosen = merge(settings, changes, "benchmark")
        panel = load_dataset(chosen).panel
        for line in compare(chosen, panel, options.seeds, kinds, options.horizons):
            print(f"| {source} | {line} |", flush=True)


def compare(
    settings: Settings,
    panel: Panel,
    seeds: int,
    kinds: dict[str, bool | None],
    horizons: Sequence[int],
) -> Iterator[str]:
    """The rows of a table."""
    random = [(kind,) for kind in KINDS] + [KINDS]
    plain = trained(settings, panel)
    given = {
        f"random {', '.join(one)}": [(plain, with_random(panel, one, s)) for s in range(seeds)]
        for one in random
    }
    for kind in ("smooth", "event"):
        driven = [with_random(drive(panel, kind, s), (kind,), s) for s in range(seeds)]
        given[f"driver {kind}"] = [(trained(settings, one), one) for one in driven]
    for name, shared in kinds.items():
        for horizon in horizons:
            for said, cases in given.items():
                with_it = [error(*run, one, horizon, shared) for run, one in cases]
                blind = [replace(one, inputs={}) for _, one in cases]
                without = [
                    error(*run, one, horizon, shared)
                    for (run, _), one in zip(cases, blind, strict=True)
                ]
                ratios = np.array(with_it) / np.array(without)
                figures = f"{np.mean(without):.4f} | {ratios.mean():.4f} | {ratios.max():.4f}"
                yield f"{name} | {horizon} | {said} | {figures}"


def trained(settings: Settings, panel: Panel) -> tuple[Dataset, PersonalModels]:
    """The data of a run, and its personal models, which read no inputs yet."""
    with build(settings, Engine(), replace(panel, inputs={})) as job:
        job.loop.run([])
        return job.dataset, kept_parameters(job, job.loop.final_download())


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


def error(
    dataset: Dataset, models: PersonalModels, panel: Panel, horizon: int, shared: bool | None
) -> float:
    """MSE on the test part of the mixture, or of the personal models alone (`shared` is None)."""
    dataset = replace(dataset, panel=panel)
    history, end = history_of(dataset), dataset.split.train
    if panel.inputs:
        models = with_input_weights(models, history, end)
    first, last = dataset.split.part("test")
    truth = np.where(np.isnan(targets_in_test(dataset)), np.nan, history.observed[:, first:last])
    if shared is None:
        chain = forecast_chain(models, history, first - horizon + 1, last - horizon + 1)
        made = next(islice(chain, horizon - 1, None))
        return float(np.nanmean((truth - made) ** 2))
    sharing = Settings().sharing if not shared else with_preset(Settings(), "best", "").sharing
    ensemble = new_ensemble(models, history, end, title="personal model", sharing=sharing)
    found = ensemble.run(history, dataset.split.test, horizon)
    assert found is not None
    combined = restricted_to_test(dataset, found).mixed.combined
    return float(np.nanmean((truth[:, -combined.shape[1] :] - combined) ** 2))


if __name__ == "__main__":
    main()
