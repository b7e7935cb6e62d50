"""Each constant of the mixture, varied alone on the days of the choice.

    python benchmarks/constants.py --data-folder DIR [--horizon 1] [--clients 30]
    python benchmarks/constants.py --data-folder DIR --grid 3,6,12,24

The table has the mean over the five datasets of the mixture's error over that of the best expert,
on ordinary days and on made holidays, and the worst window; intervals.py --vary does the same for
the constants of the intervals. One step ahead, made-up counts are included: the
mixture's error over that of the best reference, for other draws than mixture.py --counts shows.
--grid prints the settings among which those for several steps ahead were chosen, with the mean
ratios of each horizon, the least mean of all first. All windows are before the test days;
docs/evidence/choices.md.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from mixture import Played, awake, play
from mixture_cases import COUNT_CHOICE, Case, best_reference, cases, count_cases, mean_error

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.experts.mixture import Mixture
from fuels.kernels import mixture

MIXTURE = {
    "rate": (0.05, 0.1, 0.2, 0.4),
    "share": (0.01, 0.02, 0.05, 0.1),
    "memory": (0.8, 0.9, 0.95, 0.97),
    "pull": (0.1, 0.3, 1.0),
    "pull_early": (3.0, 10.0, 30.0),
    "top": (1.0, 0.998, 0.995, 0.99, 0.98),
    "prior": (1.0, 3.0, 10.0),
    "clip": (2.0, 2.5, 3.0, 4.0, np.inf),
    "surprise": (0.8, 0.9, 1.0),
    "limit": (3.0, 5.0, 8.0, 12.0, np.inf),
}
BEFORE = {"top": 0.998, "prior": 1.0, "clip": 2.5, "surprise": 1.0, "limit": np.inf}
GRID = {"top": (0.998, 0.995, 0.99, 0.98), "memory": (0.9, 0.95, 0.97), "share": (0.01, 0.02, 0.05)}


def mixed(
    played: Played,
    horizon: int,
    constants: mixture.Constants,
    warm: bool = True,
    without: str = "",
) -> Floats:
    """What the mixture says in warm-up and after it; without warm-up it starts after it."""
    begin = 0 if warm else played.early
    kept = [i for i, name in enumerate(played.past.experts) if name != without]
    names = [name for name in played.past.experts if name != without]
    forecasts = played.joined(dict)[kept, :, begin:]
    mixture = Mixture(len(played.truth), names, horizon, constants)
    said = mixture.run(played.truth[:, begin:], forecasts).combined
    missing = np.full((len(said), begin), np.nan)
    return np.concatenate([missing, said], axis=1)


def ratio(played: Played, said: Floats) -> float:
    """The mixture's error in the window over that of the best expert."""
    (part,) = played.parts.values()
    truth = played.scored[:, part]
    alone = awake(played.past.experts)
    best = min(mean_error(truth, f[:, part]) for f in alone.values())
    return mean_error(truth, said[:, played.early :][:, part]) / best


def windows(folder: Path, clients: int) -> Iterator[Case]:
    """The days of the choice, with as many clients of each city."""
    for case in cases(folder, choice=True):
        few = {} if "METR" in case.name else {"clients": clients}
        yield replace(case, data=case.data | few)


def halves(values: list[float]) -> tuple[float, float]:
    """Means over ordinary windows and over made holidays, which come after them."""
    middle = len(values) // 2
    return float(np.mean(values[:middle])), float(np.mean(values[middle:]))


def counts_ratio(played: Played, reference: float, said: Floats) -> float:
    """The mixture's error over that of the best reference."""
    (part,) = played.parts.values()
    return mean_error(played.scored[:, part], said[:, played.early :][:, part]) / reference


def mixture_table(played: list[Played], horizon: int, chosen: mixture.Constants) -> None:
    """One step ahead also artificial counts; docs/evidence/choices.md shows other draws of them."""
    variants: dict[str, tuple[mixture.Constants, bool, str]] = {"chosen": (chosen, True, "")}
    variants["chosen, no warm-up"] = (chosen, False, "")
    counts: dict[str, list[tuple[Played, float]]] = {}
    if horizon > 1:
        variants["all as one step ahead"] = (mixture.Constants(), True, "")
    else:
        before = chosen._replace(**BEFORE)
        variants["no expert of the calendar alone"] = (chosen, True, "ridge, calendar")
        variants["nor prior, surprise, limit; top 0.998, clip 2.5"] = (
            before,
            True,
            "ridge, calendar",
        )
        for case in count_cases(COUNT_CHOICE):
            counts.setdefault(case.name, []).append((play(case, {}), best_reference(case)))
    for name, values in MIXTURE.items():
        for value in values:
            if value != getattr(chosen, name):
                shown = "none" if value == np.inf else f"{value:g}"
                variants[f"{name} {shown}"] = (chosen._replace(**{name: value}), True, "")
    heads = ["mixture", "ordinary days", "made holidays", "worst window"]
    heads += [f"{kind} counts (worst set)" for kind in counts]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for title, (constants, warm, without) in variants.items():
        ratios = [ratio(one, mixed(one, horizon, constants, warm, without)) for one in played]
        ordinary, holidays = halves(ratios)
        cells = [title, f"{ordinary:.4f}", f"{holidays:.4f}", f"{max(ratios):.3f}"]
        for sets in counts.values():
            found = [
                counts_ratio(one, least, mixed(one, horizon, constants, warm, without))
                for one, least in sets
            ]
            cells.append(f"{np.mean(found):.4f} ({max(found):.4f})")
        print("| " + " | ".join(cells) + " |", flush=True)


def grid_table(folder: Path, clients: int, horizons: list[int]) -> None:
    settings = list(itertools.product(*GRID.values()))
    ratios: list[list[float]] = [[] for _ in settings]
    for horizon in horizons:
        played = [play(case, {}, horizon) for case in windows(folder, clients)]
        for values, found in zip(settings, ratios, strict=True):
            constants = mixture.AHEAD._replace(**dict(zip(GRID, values, strict=True)))
            found += halves([ratio(one, mixed(one, horizon, constants)) for one in played])
    heads = [f"{h} ahead, {days}" for h in horizons for days in ("ordinary", "holidays")]
    print("| " + " | ".join([*GRID, *heads, "mean"]) + " |")
    print("|---" * (len(GRID) + len(heads) + 1) + "|")
    for mean, values, found in sorted(
        (float(np.mean(found)), values, found)
        for values, found in zip(settings, ratios, strict=True)
    ):
        cells = [*(f"{v:g}" for v in values), *(f"{x:.3f}" for x in [*found, mean])]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--horizon", type=int, default=1, help="steps ahead")
    parser.add_argument("--grid", default="", help="steps ahead, such as 3,6,12,24")
    parser.add_argument("--clients", type=int, default=30, help="clients of each city")
    options = parser.parse_args()
    h = options.horizon
    if not all(part.isdecimal() and int(part) > 0 for part in options.grid.split(",") if part):
        parser.error("--grid takes whole numbers of steps, such as 3,6,12,24")
    try:
        if options.grid:
            horizons = [int(part) for part in options.grid.split(",") if part]
            grid_table(options.data_folder, options.clients, horizons)
            return
        played = [play(case, {}, h) for case in windows(options.data_folder, options.clients)]
    except FuelsError as error:
        raise SystemExit(f"constants.py: {error}") from None
    constants = mixture.Constants() if h == 1 else mixture.AHEAD
    mixture_table(played, h, constants)


if __name__ == "__main__":
    main()
