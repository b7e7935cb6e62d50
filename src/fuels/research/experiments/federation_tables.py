"""The tables of `fuels experiment federation`, one for each question, with their conclusions."""

from __future__ import annotations

from fuels.methods.registry import find_method
from fuels.research.experiments import boosting
from fuels.research.experiments import federation_pages as pages
from fuels.research.experiments.base import Result
from fuels.research.experiments.federation_changes import (
    ALL,
    BOTH,
    NOTHING,
    POOLED,
    SUMS,
    Case,
    Change,
    Found,
    Pair,
    Plan,
)
from fuels.research.experiments.federation_pages import Part, average, column, conclusion

DAY = 86400


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
    pictures = {}
    if "history" in parts:
        pictures["federation"] = pages.picture(found, parts["history"], unit)
    return Result(
        {f"federation-{name}": part.table for name, part in parts.items()},
        pictures,
        pages.how_to_read(found, unit),
        data={"federation-changes": pages.details(parts)},
    )


def sums(found: Found) -> Part:
    """Each sum against local experts only, and a model of pooled data as one more expert."""
    rows = found.by_place({name: Pair(Case(name)) for name in SUMS})
    title = "What each sum adds, one step ahead, all clients"
    said = [conclusion(BOTH, column(rows, BOTH))]
    pooled = found.by_place({POOLED: Pair(Case(NOTHING, model=boosting.TITLE))})
    if boosting.installed():
        rows = {place: {**each, **pooled[place]} for place, each in rows.items()}
        said.append(
            f"The limit: {boosting.TITLE}, as one more expert and without sums, changes the MSE by"
            f" {average(pooled):+.1f} % on average, both sums by"
            f" {average(column(rows, BOTH)):+.1f} %."
        )
    return Part(title, rows, said, base="nothing shared")


def histories(found: Found, plan: Plan, unit: str) -> Part:
    """Both sums for newcomers, by the length of their history; each sum in the CSV file."""
    labels = {f"{history} {unit}": history for history in plan.days} | {"whole": ALL}
    rows = {
        shared: found.by_place(
            {name: Pair(Case(shared), history=h, new=True) for name, h in labels.items()}
        )
        for shared in SUMS
    }
    both = rows.pop(BOTH)
    more = {f"{n}, {shared}": changes for shared in rows for n, changes in rows[shared].items()}
    title = f"What both sums add for newcomers, by their {unit} of history"
    return Part(title, both, [conclusion(BOTH, both)], more)


def horizons(found: Found, plan: Plan) -> Part:
    """Both sums, several steps ahead."""
    rows = found.by_place(
        {
            f"{h} step{'s' * (h > 1)}": Pair(Case(BOTH, horizon=h), Case(NOTHING, horizon=h))
            for h in plan.horizons
        }
    )
    title = "What both sums add, by steps ahead, all clients"
    return Part(title, rows, [conclusion(BOTH, rows)])


def noises(found: Found, plan: Plan) -> Part:
    """Both sums with noise on every number of every sum."""
    noise = {f"{n:g}": Pair(Case(BOTH, noise=n)) for n in (0.0, *plan.noise)}
    rows = found.by_place(noise)
    clients = max(len(dataset.ids) for dataset in found.datasets.values())
    title = (
        "What both sums add with Gaussian noise on each number of a sum, by its standard deviation"
        f" (a client adds at most 4 to the live mean; at most {clients} clients)"
    )
    means = [f"with a noise of {name}: {average(column(rows, name)):+.1f} %" for name in noise]
    most = [*noise][-1]
    said = [
        f"Mean change of the MSE {'; '.join(means)}. It is noise, not a privacy guarantee.",
        conclusion(f"both sums and a noise of {most}", column(rows, most)),
    ]
    return Part(title, rows, said, base="nothing shared")


def methods(found: Found, plan: Plan, unit: str) -> Part:
    """Personal models of every method, without and with both sums, against Solo without sums."""
    cases = {
        f"{find_method(name).title}{more}": Case(shared, model=name)
        for shared, more in ((NOTHING, ""), (BOTH, " and both sums"))
        for name in plan.methods
        if (shared, name) != (NOTHING, "solo")
    }
    alone = Case(NOTHING, model="solo")
    rows: dict[str, dict[str, Change | None]] = {row: {} for row in cases}
    for history in plan.method_days:
        after = "" if history == ALL else f", {history} {unit}"
        pairs = {row: Pair(case, alone, history, history != ALL) for row, case in cases.items()}
        for place, changes in found.by_place(pairs).items():
            for row, change in changes.items():
                rows[row][f"{place}{after}"] = change
    title = "What personal models add: every method with local experts, against Solo with the same"
    senders = {row: rows[row] for row, case in cases.items() if case.shared == NOTHING}
    both = {row: rows[row] for row, case in cases.items() if case.shared == BOTH}
    said = [conclusion("models from a method that sends something", senders)] if senders else []
    said.append(conclusion("both sums and any model", both))
    return Part(title, rows, said, first="personal model")
