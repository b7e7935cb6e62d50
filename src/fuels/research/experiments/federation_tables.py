"""The tables of `fuels experiment federation`, one for each question, with their conclusions."""

from __future__ import annotations

from collections.abc import Mapping

from fuels.methods.registry import find_method
from fuels.research.experiments import boosting
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
    Plan,
)
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
        pictures["federation"] = picture(found, parts["history"].rows, unit)
    return Result(
        {f"federation-{name}": part.table for name, part in parts.items()},
        pictures,
        how_to_read(found, unit),
        below={f"federation-{name}": part.said for name, part in parts.items()},
        data={"federation-changes": details(parts)},
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
    """Both sums for newcomers, by the length of their history; each sum in the CSV file."""
    rows: dict[str, dict[str, dict[str, Change | None]]] = {}
    for shared in SUMS:
        for source, window, name in found.places():
            rows.setdefault(shared, {})[name if shared == BOTH else f"{name}, {shared}"] = {
                ("whole" if history == ALL else f"{history} {unit}"): found.change(
                    source, window, Case(shared), Case(NOTHING), history=history, new=True
                )
                for history in (*plan.days, ALL)
            }
    both = rows.pop(BOTH)
    more = {name: changes for each in rows.values() for name, changes in each.items()}
    title = f"What both sums add for newcomers, by their {unit} of history"
    return Part(both, table(title, "data", "", both), [conclusion(BOTH, both)], more)


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
