"""A finished run of preset best by windows of its test part: mixture, every expert, intervals.

    python benchmarks/windows.py RUN [--periods 11]

RUN is a run folder; its test part is cut into windows of so many periods.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from fuels.errors import FuelsError
from fuels.evaluation.evaluate import restricted_to_test, targets_in_test
from fuels.experts.ensemble import new_ensemble
from fuels.experts.history import history_of
from fuels.runs.build import load_dataset
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--periods", type=int, default=11)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        show(options.run, options.periods)
    except FuelsError as error:
        raise SystemExit(f"windows.py: {error}") from None


def show(run: Path, periods: int) -> None:
    folder, settings, _ = RunFolder.reopen(run)
    if not folder.finished:
        raise FuelsError(f"{run}: this run is not finished; end it with fuels run --resume {run}")
    if periods < 1:
        raise FuelsError(f"--periods must be at least 1, it is {periods}")
    dataset = load_dataset(settings)
    models = load_models(folder.models)
    history = history_of(dataset)
    ensemble = new_ensemble(models, history, dataset.split.train, title="personal model")
    past = ensemble.run(history, dataset.split.test)
    assert past is not None  # a test part was trained for
    part, truth = restricted_to_test(dataset, past), targets_in_test(dataset)
    width = periods * dataset.period
    cuts = [slice(first, first + width) for first in range(0, truth.shape[1], width)]
    days = [str(dataset.times("test")[cut.start])[:10] for cut in cuts]
    print("| MSE | " + " | ".join(f"from {day}" for day in days) + " |")
    print("|---" * (1 + len(cuts)) + "|")
    for name, said in {**part.experts, "mixture": part.mixed.combined}.items():
        squares = (truth - said) ** 2
        cells = [f"{np.nanmean(np.nanmean(squares[:, cut], axis=1)):.4f}" for cut in cuts]
        print(f"| {name} | " + " | ".join(cells) + " |")
    place = list(part.experts).index("personal model")
    led = [part.mixed.weights[cut].argmax(axis=2) == place for cut in cuts]
    print("| personal model led, % | " + " | ".join(f"{100 * w.mean():.1f}" for w in led) + " |")
    for i, level in enumerate(part.bands.levels):
        bands = [
            replace(part.bands, lower=part.bands.lower[:, :, c], upper=part.bands.upper[:, :, c])
            for c in cuts
        ]
        held = [100 * b.coverage(truth[:, c])[i] for b, c in zip(bands, cuts, strict=True)]
        print(f"| inside {level:g} %, % | " + " | ".join(f"{h:.1f}" for h in held) + " |")
        wide = [b.width()[i] for b in bands]
        print(f"| width {level:g} % | " + " | ".join(f"{w:.4f}" for w in wide) + " |")


if __name__ == "__main__":
    main()
