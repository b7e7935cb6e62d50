"""Prediction intervals by the hour of the day and by client: docs/evidence/choices.md.

    python benchmarks/intervals.py --data-folder DIR [--horizon 1] [--clients 30] [--vary]
    python benchmarks/intervals.py --data-folder DIR --test [--hours]

Intervals around the forecasts of the mixture of local experts. For each dataset and level: how many
values are inside; how far that is from the level, mean over the hours of the day; its lowest and
highest hour; hours whose 99 % band, by a bootstrap of whole days, leaves out the level; the same
distance, mean over the clients; and the mean width. Pinball loss is that of the bounds of both
levels. "symmetric" is the method of version 0.1.0: one usual error per hour, pulled to that of all
hours, and a symmetric radius without a range. The days are those of the choice, before any test
day, with made-up counts of other draws than the test shows; --test shows the test days instead.
--vary varies each constant alone and prints means over the datasets. --hours adds coverage hour by
hour, and day by day at the hour with the least.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mixture import play
from mixture_cases import COUNT_CHOICE, COUNT_SEEDS, Case, cases, count_cases

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.evaluation.coverage import interval_scores
from fuels.experts.intervals import AHEAD, CHOSEN, Bands, Constants, Intervals

LEVELS = (80.0, 95.0)
KINDS = ("sparse", "spiky", "busy")
SETS = 3  # of each kind of made-up counts
DRAWS = 2000  # of the bootstrap
VARIED = {
    "rate": (0.02, 0.05, 0.1, 0.2),
    "slot_rate": (0.0, 0.05, 0.2),
    "reach": (1 / 24, 1 / 8),
    "most": (2.0, 8.0),
    "slot_most": (0.5, 2.0),
    "slot_fade": (0.9, 0.97),
    "all_fade": (0.98, 0.995),
    "pull": (0.3, 3.0),
    "spread": (0.5, 2.0, 100.0),
    "far": (0.0, 0.5),
    "memory": (240.0, 960.0),
}


@dataclass(frozen=True)
class Stored:
    """What the mixture forecast on one dataset, and the window that is scored."""

    name: str
    truth: Floats  # [client, step], from the warm-up on
    points: Floats
    first: int  # step of the history at which they begin
    period: int
    delay: int
    limits: Floats  # [client, 2]
    window: slice
    scored: Floats  # [client, step] of the window; NaN where no value was observed


def stored(case: Case, horizon: int) -> Stored:
    played = play(case, {}, horizon)
    combined = played.warm.mixed.combined
    gap = np.full((len(combined), played.early - combined.shape[1]), np.nan)
    begin = min(part.start for part in played.parts.values())
    end = max(part.stop for part in played.parts.values())
    return Stored(
        f"{case.name}, {' and '.join(played.parts)}",
        played.truth,
        np.concatenate([combined, gap, played.past.mixed.combined], axis=1),
        played.first,
        played.period,
        horizon,
        played.limits,
        slice(played.early + begin, played.early + end),
        played.scored[:, begin:end],
    )


def sets(folder: Path, test: bool, clients: int) -> Iterator[Case]:
    for case in cases(folder, choice=not test):
        few = {} if test or "METR" in case.name else {"clients": clients}
        yield replace(case, data=case.data | few)
    yield from count_cases((COUNT_SEEDS if test else COUNT_CHOICE)[:SETS], KINDS)


# -- methods -----------------------------------------------------------------------------------


def chosen(one: Stored, constants: Constants | None = None) -> Bands:
    made = Intervals(len(one.truth), one.period, LEVELS, one.delay, constants, one.limits)
    return made.run(one.truth, made.confined(one.points), one.first)


def symmetric(one: Stored, rate: float = 0.1, memory: int = 240) -> Bands:
    """The intervals of version 0.1.0."""
    (clients, steps), misses = one.truth.shape, 1 - np.array(LEVELS) / 100
    correction, radius = np.zeros((clients, 2)), np.full((2, clients, steps), np.nan)
    scores = np.full((clients, memory), np.nan)
    seen, slots = np.zeros(clients, dtype=int), np.zeros((2, clients, one.period))
    every, usual = np.zeros((2, clients)), np.ones((clients, steps))
    row = np.arange(clients)
    for k in range(steps):
        if (past := k - one.delay) >= 0:
            error = np.abs(one.truth[:, past] - one.points[:, past])
            known, slot = ~np.isnan(error), (one.first + past) % one.period
            for level in range(2):
                told = known & ~np.isnan(radius[level, :, past])
                step = rate * ((error > radius[level, :, past]) - misses[level])
                correction[:, level] += np.where(told, step, 0)
            scores[row[known], seen[known] % memory] = (error / usual[:, past])[known]
            seen += known
            added = np.stack([error**2, np.ones(clients)])
            slots[:, :, slot] = np.where(known, 0.9 * slots[:, :, slot] + added, slots[:, :, slot])
            every = np.where(known, 0.99 * every + added, every)
        mean = np.where(every[1] > 0, every[0] / np.maximum(every[1], 1e-9), 1.0)
        square, count = slots[:, :, (one.first + k) % one.period]
        usual[:, k] = np.maximum(np.sqrt((square + mean) / (count + 1)), 1e-9)
        ordered, count = np.sort(scores, axis=1), np.minimum(seen, memory)
        for level in range(2):
            rank = np.minimum(np.ceil((1 - misses[level]) * (count + 1)), count).astype(int)
            quantile = np.where(count > 0, ordered[row, np.maximum(rank, 1) - 1], np.nan)
            radius[level, :, k] = quantile * np.exp(correction[:, level]) * usual[:, k]
        radius[1, :, k] = np.maximum(radius[1, :, k], radius[0, :, k])
    return Bands(LEVELS, one.points - radius, one.points + radius)


# -- figures -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    pinball: float
    inside: Floats  # [level], in percent
    hours: Floats  # [level, hour]
    apart: Floats  # [level]: from the level, mean over the hours
    beyond: list[int]  # [level]: hours whose band leaves the level out
    clients: Floats  # [level]: as `apart`, mean over the clients
    width: Floats  # [level]
    outside: int  # bounds outside the range


def in_window(one: Stored, bands: Bands) -> Bands:
    """The intervals of the window that is scored."""
    part = one.window
    return replace(bands, lower=bands.lower[:, :, part], upper=bands.upper[:, :, part])


def figures_of(one: Stored, bands: Bands) -> Figures:
    scores = interval_scores(bands, one.scored, one.first + one.window.start, one.period)
    hours, clients = 100 * scores.by_phase, 100 * scores.by_client
    levels = np.array(LEVELS)[:, None]
    low, high = one.limits[:, :1], one.limits[:, 1:]
    return Figures(
        scores.pinball,
        100 * scores.coverage,
        hours,
        np.nanmean(np.abs(hours - levels), axis=1),
        [beyond_band(one, bands, level) for level in range(len(LEVELS))],
        np.nanmean(np.abs(clients - levels), axis=1),
        scores.width,
        int(((bands.lower < low) | (bands.upper > high)).sum()),
    )


def beyond_band(one: Stored, bands: Bands, level: int) -> int:
    """Hours whose 99 % band of coverage leaves the level out, by a bootstrap of whole days."""
    total, held = by_day(one, bands, level)
    days = len(total)
    drawn = np.random.default_rng(0).integers(0, days, (DRAWS, days))
    with np.errstate(invalid="ignore"):
        share = 100 * held[drawn].sum(axis=1) / total[drawn].sum(axis=1)  # [draw, hour]
    low, high = np.nanquantile(share, (0.005, 0.995), axis=0)
    return int(((low > LEVELS[level]) | (high < LEVELS[level])).sum())


def by_day(one: Stored, bands: Bands, level: int) -> tuple[Floats, Floats]:
    """How many values there are, and how many are inside, [whole day, hour]."""
    known = ~np.isnan(one.scored) & ~np.isnan(bands.lower[level])
    inside = known & (one.scored >= bands.lower[level]) & (one.scored <= bands.upper[level])
    skip = -(one.first + one.window.start) % one.period  # to the first whole day
    days = (known.shape[1] - skip) // one.period
    whole = slice(skip, skip + days * one.period)
    total, held = (each[:, whole].sum(axis=0).reshape(days, -1) for each in (known, inside))
    return total, held


def lowest(one: Stored, bands: Bands, level: int) -> str:
    """Coverage of each day at the hour with the least coverage."""
    total, held = by_day(one, bands, level)
    hour = int(np.argmin(held.sum(axis=0) / np.maximum(total.sum(axis=0), 1)))
    shares = 100 * held[:, hour] / np.maximum(total[:, hour], 1)
    return f"{hour} h, day by day: " + " ".join(f"{share:.0f}" for share in shares)


def table(all_sets: list[Stored], hours: bool) -> None:
    heads = ["set", "method", "pinball loss", "outside the range"]
    for level in LEVELS:
        heads += [f"inside {level:g} %", "hours, mean distance", "lowest to highest hour"]
        heads += ["hours beyond 99 %", "clients, mean distance", "width"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    ratios = []
    for one in all_sets:
        made = {"symmetric": in_window(one, symmetric(one)), "chosen": in_window(one, chosen(one))}
        found = {name: figures_of(one, bands) for name, bands in made.items()}
        ratios.append(found["chosen"].pinball / found["symmetric"].pinball)
        for name, figures in found.items():
            cells = [one.name, name, f"{figures.pinball:.5f}", str(figures.outside)]
            for i in range(len(LEVELS)):
                least, most = np.nanmin(figures.hours[i]), np.nanmax(figures.hours[i])
                cells += [f"{figures.inside[i]:.1f}", f"{figures.apart[i]:.2f}"]
                cells += [f"{least:.1f} to {most:.1f}", str(figures.beyond[i])]
                cells += [f"{figures.clients[i]:.2f}", f"{figures.width[i]:.3f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
            if hours:
                for i, (level, shares) in enumerate(zip(LEVELS, figures.hours, strict=True)):
                    print(f"  {level:g} %: " + " ".join(f"{share:.1f}" for share in shares))
                    print(f"  {level:g} %, {lowest(one, made[name], i)}")
    worst = all_sets[int(np.argmax(ratios))].name
    print(f"\npinball loss, chosen over symmetric: mean {np.mean(ratios):.4f}, ", end="")
    print(f"worst {max(ratios):.4f} ({worst})")


def variations(all_sets: list[Stored]) -> None:
    """Each constant alone: pinball loss over that of the chosen ones, and distances in points."""
    best = CHOSEN if all_sets[0].delay == 1 else AHEAD
    variants = {"chosen": best}
    for name, values in VARIED.items():
        values = [value for value in values if value != getattr(best, name)]
        variants |= {f"{name} {v:.3g}": best._replace(**{name: v}) for v in values}
    heads = ["intervals", "pinball loss (worst set)", "hours, 80 %", "hours, 95 %"]
    heads += ["clients, 80 %", "clients, 95 %", "hours beyond 99 %"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    usual: list[float] = []
    for title, constants in variants.items():
        found = [figures_of(one, in_window(one, chosen(one, constants))) for one in all_sets]
        usual = usual or [figures.pinball for figures in found]
        ratios = [f.pinball / base for f, base in zip(found, usual, strict=True)]
        means = np.mean([[*f.apart, *f.clients] for f in found], axis=0)
        cells = [title, f"{np.mean(ratios):.4f} ({max(ratios):.3f})", *(f"{m:.2f}" for m in means)]
        print(
            "| " + " | ".join([*cells, str(sum(sum(f.beyond) for f in found))]) + " |", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--horizon", type=int, default=1, help="steps ahead")
    parser.add_argument("--clients", type=int, default=30, help="clients of each city, at choice")
    parser.add_argument("--test", action="store_true", help="the test windows")
    parser.add_argument("--vary", action="store_true", help="each constant varied alone")
    parser.add_argument("--hours", action="store_true", help="coverage hour by hour")
    options = parser.parse_args()
    if options.vary and options.test:
        parser.error("--vary is for the days of the choice; leave out --test")
    try:
        wanted = sets(options.data_folder, options.test, options.clients)
        all_sets = [stored(case, options.horizon) for case in wanted]
    except FuelsError as error:
        raise SystemExit(f"intervals.py: {error}") from None
    if options.vary:
        variations(all_sets)
    else:
        table(all_sets, options.hours)


if __name__ == "__main__":
    main()
