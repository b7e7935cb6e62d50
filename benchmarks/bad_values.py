"""Implausible values: what is flagged, and what the others cost: docs/evidence/bad-values.md.

    python benchmarks/bad_values.py DIR [--choice] [--draws 50] [--repeats 5]

DIR holds milan_net_441cells_hourly.npz and metr_la_first10_full_5min.npz. Faults are put at random
places of Milan's test days, each at another client: single values times 10 to 1000, a sensor that
repeats a value for 12 or 24 hours, six hours in another unit (times 1000), six hours of zeros, and
true changes of level, which last to the end. The first table counts values that are flagged though
nothing was changed; the second, over many draws, which changed values are flagged; the third
compares the mixture of local and shared experts with and without screening: MSE over all values
that were not changed, relative to the MSE over the same values without any fault. --choice shows
the days on which the constants were chosen (Milan's days 30 to 40, METR-LA's days up to 77).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mixture_cases import COUNT_CHOICE, COUNT_SEEDS, Case, cases, count_cases, load
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.config import Mixture, Settings, Sharing, merge
from fuels.data.loading import load_panel
from fuels.data.panel import Panel
from fuels.data.screening import Screen, Screened
from fuels.data.windows import Dataset
from fuels.experts.history import History, make_history
from fuels.experts.horizon import HorizonEnsemble, fit_horizon
from fuels.experts.limits import Limits
from fuels.experts.shared import SharedExperts

DAY = 24
Change = Callable[[Floats, float, np.random.Generator], Floats]  # values, the one before, draws


@dataclass(frozen=True)
class Fault:
    """Values of one client from some hour on; 0 hours: up to the end."""

    name: str
    hours: int
    change: Change


def spikes(low: float, high: float) -> Change:
    def change(values: Floats, before: float, draw: np.random.Generator) -> Floats:
        return values * np.exp(draw.uniform(np.log(low), np.log(high)))

    return change


def times(factor: float) -> Change:
    return lambda values, before, draw: values * factor


def stuck(values: Floats, before: float, draw: np.random.Generator) -> Floats:
    return np.full_like(values, before)


FAULTS = (
    Fault("1 value times 10", 1, times(10)),
    Fault("1 value times 10 to 1000", 1, spikes(10, 1000)),
    Fault("stuck for 12 hours", 12, stuck),
    Fault("stuck for 24 hours", 24, stuck),
    Fault("6 hours times 1000", 6, times(1000)),
    Fault("6 hours of zeros", 6, times(0)),
)
SHIFTS = tuple(
    Fault(f"level times {factor:g}, to the end", 0, times(factor)) for factor in (2, 0.3, 10, 0.1)
)


@dataclass(frozen=True)
class Damaged:
    panel: Panel
    changed: NDArray[np.bool_]  # [time, client]
    places: list[tuple[int, int]]  # first step and client


def damaged(panel: Panel, first: int, fault: Fault, places: int, draw: int) -> Damaged:
    """The panel with a fault at places from step `first` on, where a value is above 0."""
    rng = np.random.default_rng([draw, *fault.name.encode()])
    values, changed = panel.values.copy(), np.zeros(panel.values.shape, dtype=np.bool_)
    found: list[tuple[int, int]] = []
    for client in rng.permutation(values.shape[1])[:places]:
        room = fault.hours or 3 * DAY
        usable = np.flatnonzero(panel.values[first : panel.length - room, client] > 0) + first
        step = int(rng.choice(usable))
        rows = slice(step, step + fault.hours if fault.hours else panel.length)
        values[rows, client] = fault.change(values[rows, client], values[step - 1, client], rng)
        changed[rows, client] = True
        found.append((step, int(client)))
    return Damaged(replace(panel, values=values), changed, found)


def screen(panel: Panel, period: int) -> Screened:
    return Screen.begin(len(panel.ids), period).check(panel)


def flags(panel: Panel, period: int) -> NDArray[np.bool_]:
    """Which values are implausible, [time, client]."""
    said = screen(panel, period)
    found = np.zeros(panel.values.shape, dtype=np.bool_)
    found[said.step[said.implausible], said.client[said.implausible]] = True
    return found


# -- clean values ------------------------------------------------------------------------------


def clean_panels(folder: Path, choice: bool) -> Iterator[tuple[str, Panel, int, slice]]:
    """Name, panel, period and the steps that count."""

    def panel(**data: object) -> Panel:
        return load_panel(merge(Settings(), {"data": data}, "benchmark"))

    milan = panel(source=str(folder / "milan_net_441cells_hourly.npz"))
    metr = {"source": str(folder / "metr_la_first10_full_5min.npz"), "missing": "0"}
    hourly, fine = panel(**metr, resample="1h", how="mean"), panel(**metr)
    if choice:
        yield "Milan, 441 cells, days 1 to 40", milan, 24, slice(0, 40 * 24)
        yield "METR-LA by the hour, days 1 to 77", hourly, 24, slice(0, 77 * 24)
        yield "METR-LA, 5 minutes, days 1 to 77", fine, 288, slice(0, 77 * 288)
    else:
        yield "Milan, 441 cells, 11 to 21 December", milan, 24, slice(40 * 24, 51 * 24)
        yield "Milan, 22 December to 1 January", milan, 24, slice(51 * 24, 62 * 24)
        yield "METR-LA by the hour, days 78 to 119", hourly, 24, slice(77 * 24, None)
        yield "METR-LA, 5 minutes, days 78 to 119", fine, 288, slice(77 * 288, None)
    for name in ("net", "call", "sms"):
        yield f"synthetic:{name}, all days", panel(source=f"synthetic:{name}"), 24, slice(0, None)
    for kind in ("sparse", "spiky", "busy"):
        seed = (COUNT_CHOICE if choice else COUNT_SEEDS)[0]
        for case in count_cases((seed,), (kind,)):
            assert case.panel is not None
            yield f"made-up {kind} counts, all days", case.panel, 24, slice(0, None)


def clean_table(folder: Path, choice: bool) -> None:
    print("| nothing changed | values | flagged | per 1000 | most of a client, per 1000 |")
    print("|---|---|---|---|---|")
    for name, panel, period, part in clean_panels(folder, choice):
        found = flags(panel, period)[part]
        known = ~np.isnan(panel.values[part])
        most = 1000 * float((found.sum(axis=0) / np.maximum(known.sum(axis=0), 1)).max())
        share = 1000 * found.sum() / known.sum()
        print(f"| {name} | {known.sum()} | {found.sum()} | {share:.2f} | {most:.1f} |")


# -- what is flagged ---------------------------------------------------------------------------


def detection_table(panel: Panel, first: int, places: int, draws: int) -> None:
    untouched = flags(panel, DAY)
    print(f"\n| fault at {places} places, {draws} draws | flagged | of all values | other flags |")
    print("|---|---|---|---|")
    for fault in FAULTS:
        hit = whole = extra = 0
        for draw in range(draws):
            made = damaged(panel, first, fault, places, draw)
            found = flags(made.panel, DAY)
            hit += sum(bool(found[s : s + fault.hours, c].any()) for s, c in made.places)
            whole += int((found & made.changed).sum())
            extra += int((found & ~made.changed).sum() - (untouched & ~made.changed).sum())
        count = places * draws
        print(
            f"| {fault.name} | {100 * hit / count:.2f} % of the places"
            f" | {100 * whole / count / fault.hours:.1f} % | {extra / count:+.3f} per place |"
        )
    print(f"\n| change at {places} places, {draws} draws | flagged | hours until followed: median,"
          " 90 %, longest |\n|---|---|---|")  # fmt: skip
    for fault in SHIFTS:
        held, hours = 0, []
        for draw in range(draws):
            made = damaged(panel, first, fault, places, draw)
            found = flags(made.panel, DAY) & ~untouched  # flagged without the change too: an event
            for step, client in made.places:
                late = np.flatnonzero(found[step : step + 2 * DAY, client])
                held += len(late)
                hours.append(late[-1] + 1 if len(late) else 0)
        middle, most, longest = np.quantile(hours, [0.5, 0.9, 1.0])
        print(f"| {fault.name} | {held / len(hours):.1f} values per place"
              f" | {middle:.0f}, {most:.0f}, {longest:.0f} |")  # fmt: skip


# -- what the others cost ----------------------------------------------------------------------


@dataclass
class World:
    """A mixture of local and shared experts, fitted on a panel without faults."""

    dataset: Dataset
    shared: SharedExperts
    fitted: HorizonEnsemble
    end: int

    @classmethod
    def fit(cls, case: Case) -> World:
        dataset, _ = load(case)
        last = max(end for _, end in case.windows.values()) * dataset.period
        panel = replace(dataset.panel, values=dataset.panel.values[: last - dataset.offset])
        dataset = replace(dataset, panel=panel)
        shared = SharedExperts.of(Sharing(statistics=True, live_mean=True))
        assert shared is not None
        end = case.fit * dataset.period
        world = cls(dataset, shared, None, end)  # type: ignore[arg-type]
        history = world.history(dataset.panel)
        limits = Limits.of(Mixture(on=True), history.observed[:, :end], dataset.mean, dataset.std)
        world.fitted = fit_horizon(
            shared.pool,
            history,
            end,
            pooled=lambda until: shared.coefficients(history, dataset.ids, until),
            limits=limits.normalised(dataset.mean, dataset.std),
        )
        return world

    def history(self, panel: Panel) -> History:
        data = self.dataset
        made = make_history(panel, data.period, data.mean, data.std, data.offset, data.calendar)
        return self.shared.with_live_mean(made, data.ids)

    def squared(self, panel: Panel) -> Floats:
        """Squared errors against the true values, [time, client] after training."""
        history = self.history(panel)
        backtest = self.fitted.copy().run(history, self.end, history.length)
        truth = self.history(self.dataset.panel).observed[:, self.end :]
        wrong: Floats = ((backtest.mixed.combined - truth) ** 2).T
        return wrong


def cost_table(world: World, places: int, repeats: int) -> None:
    """MSE of the values that were not changed, and of the faulty clients in the day after."""
    panel = world.dataset.panel
    clean = world.squared(panel)
    screened = world.squared(screen(panel, DAY).removed(panel))
    print(f"\nMSE {np.nanmean(clean):.5f}; with screening and no fault {np.nanmean(screened):.5f}")
    heads = [f"{places} faults, {repeats} draws"]
    for name in ("kept", "screened"):
        heads += [f"{name}: all other values (worst draw)", "the same clients, a day after"]
    print(f"\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for fault in (*FAULTS, None):
        found: list[list[float]] = []
        for draw in range(repeats):
            if fault is None:
                made = several(panel, world.end, places, draw)
            else:
                made = damaged(panel, world.end, fault, places, draw)
            others = ~made.changed[world.end :]
            after = others & within_a_day(~others)
            found.append([])
            for seen in (made.panel, screen(made.panel, DAY).removed(made.panel)):
                wrong = world.squared(seen)
                for rows in (others, after):
                    ratio = np.nanmean(wrong[rows]) / np.nanmean(clean[rows])
                    found[-1].append(100 * float(ratio) - 100)
        mean, worst = np.mean(found, axis=0), np.max(found, axis=0)
        cells = [
            percent(a) + f" ({percent(b)})" * (i % 2 == 0)
            for i, (a, b) in enumerate(zip(mean, worst, strict=True))
        ]
        print(f"| {fault.name if fault else 'all of these'} | " + " | ".join(cells) + " |")


def percent(more: float) -> str:
    """A rise in percent; a large one as a factor."""
    return f"{more:+.2f} %" if more < 1000 else f"x {more / 100 + 1:.0f}"


def within_a_day(changed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which steps follow a changed one of the same client within a day, [time, client]."""
    found = np.zeros_like(changed)
    for hours in range(1, DAY + 1):
        found[hours:] |= changed[:-hours]
    return found


def several(panel: Panel, first: int, places: int, draw: int) -> Damaged:
    """Every kind of fault at its own places."""
    made = Damaged(panel, np.zeros(panel.values.shape, dtype=np.bool_), [])
    for number, fault in enumerate(FAULTS):
        more = damaged(made.panel, first, fault, places, 1000 * (draw + 1) + number)
        made = Damaged(more.panel, made.changed | more.changed, [*made.places, *more.places])
    return made


def shift_table(world: World, places: int) -> None:
    """MSE of the clients whose level changed, by time after it."""
    panel = world.dataset.panel
    print(f"\n| {places} clients change their level | first day | second day | third day |")
    print("|---|---|---|---|")
    for fault in SHIFTS:
        made = damaged(panel, world.end, fault, places, 0)
        truth = world.history(made.panel).observed[:, world.end :].T
        for name, seen in (
            ("kept", made.panel), ("screened", screen(made.panel, DAY).removed(made.panel))
        ):  # fmt: skip
            history = world.history(seen)
            run = world.fitted.copy().run(history, world.end, history.length)
            wrong = (run.mixed.combined.T - truth) ** 2
            cells = []
            for day in range(3):
                part = [wrong[s - world.end + day * DAY :][:DAY, c].mean() for s, c in made.places]
                cells.append(f"{np.median(part):.3f}")
            print(f"| {fault.name}, {name} (median over the clients) | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--choice", action="store_true")
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5, help="draws of the third table")
    options = parser.parse_args()
    clean_table(options.folder, options.choice)
    case = next(iter(cases(options.folder, options.choice)))
    case = replace(case, data={**case.data, "clients": options.clients})
    world = World.fit(case)
    detection_table(world.dataset.panel, world.end, options.places, options.draws)
    cost_table(world, options.places, options.repeats)
    shift_table(world, options.places)


if __name__ == "__main__":
    main()
