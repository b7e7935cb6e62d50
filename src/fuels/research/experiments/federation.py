"""Federation: what does sharing add?

The same clients are forecast with and without what they share. Five questions, one table each:

- sums: what do the statistics, the live mean and both add, and what would pooled data add?
- history: what do the sums add for newcomers with 3, 7, 14 or 28 periods of history?
- horizon: and several steps ahead?
- noise: and with Gaussian noise on every sum?
- methods: what do personal models add, trained alone or with a method that sends something?

Training does not depend on the sums. A method is therefore trained once for each seed, and its
models are mixed with the experts under every setting (study/mixtures.py). A validation part of the
split becomes the first window of the test, so that models are not chosen on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fuels.config import PRESETS
from fuels.data.sample import parse_lags
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.methods.registry import METHODS, find_method
from fuels.research.experiments import boosting
from fuels.research.experiments.base import Budget, Context, Experiment, Result, source_name
from fuels.research.experiments.federation_changes import ALL, Case, Change, Found, Group, Window
from fuels.research.experiments.federation_pages import (
    Part,
    Rows,
    average,
    column,
    conclusion,
    details,
    how_to_read,
    picture,
    table,
)
from fuels.research.experiments.skill import preset_changes
from fuels.research.study.mixtures import Errors, Model, evaluated, trained
from fuels.runs.settings import ResolvedSettings, resolve

SHARED: dict[str, dict[str, bool]] = {
    "nothing": {"statistics": False, "live_mean": False},
    "statistics": {"statistics": True, "live_mean": False},
    "live mean": {"statistics": False, "live_mean": True},
    "both sums": {"statistics": True, "live_mean": True},
}
NOTHING, *SUMS = SHARED
BOTH, POOLED = SUMS[-1], "pooled data"
TABLES = ("sums", "history", "horizon", "noise", "methods")
DAY = 86400


@dataclass(frozen=True)
class Plan:
    """The options of the command: which mixtures are compared."""

    tables: tuple[str, ...]
    days: tuple[int, ...]  # of the newcomers' history
    share: float  # of newcomers
    horizons: tuple[int, ...]
    noise: tuple[float, ...]
    methods: tuple[str, ...]
    method_days: tuple[int, ...]  # histories with which methods are trained

    @property
    def histories(self) -> list[int]:
        """The whole one first: it says who is compared."""
        wanted = {ALL}
        wanted |= set(self.days if "history" in self.tables else ())
        wanted |= set(self.method_days if "methods" in self.tables else ())
        return sorted(wanted, reverse=True)

    def cases(self, history: int) -> list[Case]:
        """The mixtures for clients with a history."""
        found: list[Case] = []
        whole = history == ALL
        if whole or ("history" in self.tables and history in self.days):
            found += [Case(shared) for shared in SHARED]
        if whole and "sums" in self.tables and boosting.installed():
            found.append(Case(NOTHING, model=boosting.TITLE))
        if whole and "horizon" in self.tables:
            found += [Case(shared, horizon=h) for h in self.horizons for shared in (NOTHING, BOTH)]
        if whole and "noise" in self.tables:
            found += [Case(BOTH, noise=noise) for noise in self.noise]
        if "methods" in self.tables and history in self.method_days:
            found += [Case(s, model=name) for name in self.methods for s in (NOTHING, BOTH)]
        return list(dict.fromkeys(found))


def read_plan(context: Context) -> Plan:
    options = context.options
    [share, *more], noise = context.numbers("share"), context.numbers("noise")
    if more or not 0 < share < 1:
        raise FuelsError(f"--option share={options['share']}: one number between 0 and 1")
    if any(value < 0 for value in noise):
        raise FuelsError(f"--option noise={options['noise']}: noise is at least 0")
    tables = TABLES if options["tables"] == "all" else tuple(options["tables"].split(","))
    for name in tables:
        if name not in TABLES:
            raise FuelsError(f"--option tables: no table {name} (known: {', '.join(TABLES)})")
    methods = [*METHODS] if options["methods"] == "all" else options["methods"].split(",")
    for name in methods:
        find_method(name)
    words = options["method-days"].split(",")
    few = [word for word in words if word != "all"]
    if not all(word.isdigit() and int(word) for word in few):
        raise FuelsError("--option method-days takes whole numbers of at least 1, or all")
    return Plan(
        tables,
        _sorted(context.numbers("days", whole=True)),
        share,
        _sorted({1.0, *context.numbers("horizons", whole=True)}),
        tuple(sorted({*noise} - {0.0})),
        tuple(dict.fromkeys(["solo", *methods])),  # the others are compared with Solo
        _sorted([ALL if word == "all" else int(word) for word in words]),
    )


def _sorted(values: Any) -> tuple[int, ...]:
    return tuple(sorted({int(value) for value in values}))


def run(context: Context) -> Result:
    plan = read_plan(context)
    found = Found({}, context.seeds, plan.share)
    everything = list(groups(context, plan, found))
    trainings = train(context, plan, everything)
    total, number = sum(len(plan.cases(group.history)) for group in everything), 0
    for group in everything:
        dataset = context.dataset(mixture_settings(context, group, Case(NOTHING)))
        found.add(group, dataset)
        for case in plan.cases(group.history):
            number += 1
            errors = evaluate(context, group, case, dataset, trainings, f"{number} of {total}")
            found.errors[group.source, group.seed, group.history, case] = errors
    return result(found, plan)


# -- data and settings -------------------------------------------------------------------------


def groups(context: Context, plan: Plan, found: Found) -> Iterator[Group]:
    """The data of every source, seed and history; the windows go to `found`."""
    for source in context.sources:
        panel = context.store.panel(context.settings(source=source))
        clients = min(context.clients, len(panel.ids))
        plain = context.dataset(context.settings(source=source, data={"clients": clients}))
        train, val, test = (
            -(-(last - first) // plain.period)
            for first, last in (plain.split.part(part) for part in ("train", "val", "test"))
        )
        if len(plan.histories) > 1 and plan.histories[1] > train:
            raise FuelsError(
                f"{source_name(source)}: a history of {plan.histories[1]} is longer than the"
                f" {train} periods of training; change --option days or method-days"
            )
        ends = dict.fromkeys((0, val, val + test))  # a split without validation has one window
        whole = context.dataset(
            context.settings(
                source=source,
                data={"clients": clients},
                windows={"split": f"{train}/0/{val + test}"},
            )
        )
        found.windows[source] = tuple(Window.of(whole, *each) for each in pairwise(ends))
        for seed in context.seeds:
            for history in plan.histories:
                newcomers = "" if history == ALL else f"{plan.share}@{history}"
                split = f"{train}/0/{val + test}"
                yield Group(source, seed, history, clients, split, newcomers, plain.period)


def settings_of(context: Context, group: Group, method: str, **sections: Any) -> ResolvedSettings:
    """The settings of a training under preset best; `sections` change them for a mixture.

    Newcomers cannot look back further than a period, so with them nobody does.
    """
    changes = {**preset_changes(context, "best", method), **sections}
    windows = {**changes["windows"], "split": group.split}
    if group.newcomers:
        windows["lags"] = within_a_period(windows["lags"], group.period)
    data = {**changes.get("data", {}), "clients": group.clients, "newcomers": group.newcomers}
    sharing = {**PRESETS["best"]["sharing"], **changes.get("sharing", {})}
    own = {**changes, "windows": windows, "data": data, "sharing": sharing}
    if group.newcomers:
        own["options"] = newcomer_options(context, method, int(changes["training"]["rounds"]))
    return resolve(context.settings(method, source=group.source, seed=group.seed, **own))


def mixture_settings(context: Context, group: Group, case: Case) -> ResolvedSettings:
    """The settings that decide a mixture: nothing is trained, so those of training do not."""
    noise = 0.0 if case.shared == NOTHING else case.noise
    sharing = {**context.changes.get("sharing", {}), **SHARED[case.shared], "noise": noise}
    return settings_of(context, group, "fuels", training={"rounds": 1}, sharing=sharing)


def within_a_period(lags: str, period: int) -> str:
    """The lags that look back at most one period, in steps."""
    near = ([lag for lag in branch if lag <= period] for branch in parse_lags(lags, period))
    return "/".join(",".join(map(str, branch)) for branch in near if branch)


def newcomer_options(context: Context, method: str, rounds: int) -> dict[str, Any]:
    """Options of a method with newcomers, except those given on the command line.

    Models are lent after nine tenths of the rounds: on days before any test day later was better.
    FedDA's default rate for its warm-up model diverges on sets that miss most weeks.
    """
    own: dict[str, dict[str, Any]] = {
        "fuels-start": {"lend": max(1, rounds - max(1, rounds // 10))},
        "fedda": {"warm_rate": 0.01},
    }
    return {k: v for k, v in own.get(method, {}).items() if k not in context.method_options}


# -- trainings and mixtures --------------------------------------------------------------------


def train(context: Context, plan: Plan, everything: list[Group]) -> dict[tuple[Group, str], Model]:
    """The personal models of every method with every group; the sums need no other training."""
    wanted = {
        (group, case.model): settings_of(context, group, case.model)
        for group in everything
        for case in plan.cases(group.history)
        if case.model in plan.methods
    }
    results = context.runs(list(wanted.values()), with_folder=True)
    return dict(zip(wanted, map(trained, results), strict=True))


def evaluate(
    context: Context,
    group: Group,
    case: Case,
    dataset: Dataset,
    trainings: dict[tuple[Group, str], Model],
    place: str,
) -> Errors:
    """The errors of one mixture, with a line of progress."""
    model = trainings.get((group, case.model))
    if case.model == boosting.TITLE:
        model = boosting.pooled_model(group.seed, context.engine.threads)
    settings = mixture_settings(context, group, case)
    found, new = evaluated(context.store, settings, dataset, case.horizon, model)
    if context.reporter is not None:
        named = [source_name(group.source), f"seed {group.seed}", group.name, case.name]
        done = "" if new else " (already done)"
        context.reporter.say(f"mixture {place}: {', '.join(named)}{done}")
    return found


# -- tables ------------------------------------------------------------------------------------


def result(found: Found, plan: Plan) -> Result:
    """A table for every question, with its conclusion, and the figure."""
    dataset = next(iter(found.datasets.values()))
    unit = "days" if dataset.period * dataset.panel.step_seconds == DAY else "periods"
    makers = {
        "sums": lambda: sums(found),
        "history": lambda: histories(found, plan, unit),
        "horizon": lambda: horizons(found, plan),
        "noise": lambda: noises(found, plan),
        "methods": lambda: methods(found, plan, unit),
    }
    parts = {name: makers[name]() for name in plan.tables}
    changes = details({name: part.rows for name, part in parts.items()})
    pictures = {}
    if "history" in parts:
        pictures["federation"] = picture(found, parts["history"].rows, unit)
    return Result(
        {f"federation-{name}": part.table for name, part in parts.items()},
        pictures,
        how_to_read(found, unit),
        below={f"federation-{name}": part.said for name, part in parts.items()},
        data={"federation-changes": changes},
    )


def sums(found: Found) -> Part:
    """Each sum against local experts only, and a model of pooled data as one more expert."""
    rows = by_place(found, {name: (Case(name), Case(NOTHING)) for name in SUMS})
    title = "What each sum adds, one step ahead, all clients"
    said = [conclusion(BOTH, column(rows, BOTH))]
    pooled = by_place(found, {POOLED: (Case(NOTHING, model=boosting.TITLE), Case(NOTHING))})
    if boosting.installed():
        rows = {place: {**each, **pooled[place]} for place, each in rows.items()}
        said.append(
            f"The limit: {boosting.TITLE}, as one more expert and without sums, changes the MSE by"
            f" {average(pooled):+.1f} % on average, both sums by"
            f" {average(column(rows, BOTH)):+.1f} %."
        )
    return Part(rows, table(title, "data", "nothing shared", rows), said)


def histories(found: Found, plan: Plan, unit: str) -> Part:
    """Both sums for newcomers, by the length of their history."""
    rows: dict[str, dict[str, Change | None]] = {}
    for source, window, name in found.places():
        rows[name] = {
            ("whole" if history == ALL else f"{history} {unit}"): found.change(
                source, window, Case(BOTH), Case(NOTHING), history=history, new=True
            )
            for history in (*plan.days, ALL)
        }
    title = f"What both sums add for newcomers, by their {unit} of history"
    return Part(rows, table(title, "data", "", rows), [conclusion(BOTH, rows)])


def horizons(found: Found, plan: Plan) -> Part:
    """Both sums, several steps ahead."""
    rows = by_place(
        found,
        {
            f"{h} step{'s' * (h > 1)}": (Case(BOTH, horizon=h), Case(NOTHING, horizon=h))
            for h in plan.horizons
        },
    )
    title = "What both sums add, by steps ahead, all clients"
    return Part(rows, table(title, "data", "", rows), [conclusion(BOTH, rows)])


def noises(found: Found, plan: Plan) -> Part:
    """Both sums with noise on every number of every sum."""
    rows = by_place(
        found, {f"{n:g}": (Case(BOTH, noise=n), Case(NOTHING)) for n in (0.0, *plan.noise)}
    )
    clients = max(len(dataset.ids) for dataset in found.datasets.values())
    title = (
        "What both sums add with Gaussian noise on each number of a sum, by its standard deviation"
        f" (a client adds at most 4 to the live mean; at most {clients} clients)"
    )
    said = [
        f"with a noise of {name}: {average(column(rows, name)):+.1f} %" for name in _names(rows)
    ]
    return Part(
        rows,
        table(title, "data", "nothing shared", rows),
        [
            f"Mean change of the MSE {'; '.join(said)}. It is noise, not a privacy guarantee.",
            conclusion(
                f"both sums and a noise of {_names(rows)[-1]}", column(rows, _names(rows)[-1])
            ),
        ],
    )


def methods(found: Found, plan: Plan, unit: str) -> Part:
    """Personal models of every method, without and with both sums, against Solo without sums."""
    places = {
        (f"{name}, {history} {unit}" if history != ALL else name): (source, window, history)
        for history in plan.method_days
        for source, window, name in found.places()
    }
    cases: dict[str, Case] = {}
    for shared, more in ((NOTHING, ""), (BOTH, " and both sums")):
        cases |= {
            f"{find_method(name).title}{more}": Case(shared, model=name)
            for name in plan.methods
            if (shared, name) != (NOTHING, "solo")
        }
    rows = {
        row: {
            name: found.change(
                *(source, window, case, Case(NOTHING, model="solo")),
                history=history,
                new=history != ALL,
            )
            for name, (source, window, history) in places.items()
        }
        for row, case in cases.items()
    }
    title = "What personal models add: every method with local experts, against Solo with the same"
    senders = {row: rows[row] for row, case in cases.items() if case.shared == NOTHING}
    both = {row: rows[row] for row, case in cases.items() if case.shared == BOTH}
    said = [conclusion("models from a method that sends something", senders)] if senders else []
    said.append(conclusion("both sums and any model", both))
    return Part(rows, table(title, "personal model", "", rows), said)


def by_place(found: Found, pairs: Mapping[str, tuple[Case, Case]]) -> Rows:
    """The changes of all clients, by data and window."""
    return {
        name: {
            label: found.change(source, window, case, base, new=False)
            for label, (case, base) in pairs.items()
        }
        for source, window, name in found.places()
    }


def _names(rows: Rows) -> list[str]:
    return list(next(iter(rows.values())))


EXPERIMENT = Experiment(
    name="federation",
    title="What sharing adds",
    run=run,
    quick=Budget(clients=12, rounds=3),
    paper=Budget(clients=30, rounds=40, seeds=(0, 1, 2)),
    methods=(*METHODS, "fuels-start"),
    options={
        "tables": "all",
        "days": "3,7,14,28",
        "share": "0.5",
        "horizons": "1,6,24",
        "noise": "1,4,16",
        "methods": "all",
        "method-days": "all",
    },
    setting="preset best",
)
