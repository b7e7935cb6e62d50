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

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from fuels.config import PRESETS
from fuels.data.sample import parse_lags
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.methods.registry import METHODS, find_method
from fuels.research.experiments import boosting
from fuels.research.experiments.base import Budget, Context, Experiment, Result, source_name
from fuels.research.experiments.federation_changes import (
    ALL,
    NOTHING,
    SHARED,
    TABLES,
    Case,
    Found,
    Group,
    Plan,
    Window,
)
from fuels.research.experiments.federation_tables import result
from fuels.research.experiments.skill import preset_changes
from fuels.research.study.mixtures import Errors, Model, evaluated, trained
from fuels.runs.settings import ResolvedSettings, resolve


def read_plan(context: Context) -> Plan:
    options = context.options
    kind = "one number between 0 and 1"
    [share] = context.numbers("share", kind, lambda n: 0 < n < 1, most=1)
    noise = context.numbers("noise", "numbers of at least 0", lambda n: 0 <= n < math.inf)
    methods = [*METHODS] if options["methods"] == "all" else options["methods"].split(",")
    for name in methods:
        find_method(name)
    words = options["method-days"].split(",")
    few = [word for word in words if word != "all"]
    if not all(word.isdigit() and int(word) for word in few):
        raise FuelsError("--option method-days takes whole numbers of at least 1, or all")
    return Plan(
        tuple(context.names("tables", TABLES)),
        _sorted(context.whole_numbers("days")),
        share,
        _sorted([1, *context.whole_numbers("horizons")]),
        tuple(sorted({*noise} - {0.0})),
        tuple(dict.fromkeys(["solo", *methods])),  # the others are compared with Solo
        _sorted([ALL if word == "all" else int(word) for word in words]),
    )


def _sorted(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))


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
        split = f"{train}/0/{val + test}"
        changes: dict[str, Any] = {"data": {"clients": clients}, "windows": {"split": split}}
        whole = context.dataset(context.settings(source=source, **changes))
        found.windows[source] = tuple(Window.of(whole, *each) for each in pairwise(ends))
        for seed in context.seeds:
            for history in plan.histories:
                newcomers = "" if history == ALL else f"{plan.share}@{history}"
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
    named = [source_name(group.source), f"seed {group.seed}", group.name, case.name]
    done = "" if new else " (already done)"
    context.reporter.say(f"mixture {place}: {', '.join(named)}{done}")
    return found


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
