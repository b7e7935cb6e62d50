"""Compare methods and references on one dataset, over several seeds.

Everything is computed from records. A seed decides the initial model, every random draw of the
training, and which clients are drawn, exactly as in `fuels run --seed`. So methods are paired by
(seed, client), and a client drawn by several seeds counts once, with the mean of its errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata, wilcoxon

from fuels.arrays import Floats
from fuels.evaluation.summary import LAST, why_last
from fuels.methods.base import Method
from fuels.methods.messages import BYTES
from fuels.methods.registry import find_method
from fuels.report.facts import count_of
from fuels.report.style import join, number
from fuels.report.tables import Cell, Table, columns
from fuels.research.study.record import Record
from fuels.research.study.worth import matched, worth

Errors = dict[tuple[int, str], float]  # (seed, client): MSE


@dataclass(frozen=True)
class Row:
    """One forecast over all seeds."""

    name: str
    records: tuple[Record, ...]  # one per seed
    forecast: str  # its name in the records: the method's title, or a reference
    is_method: bool

    def means(self, measure: str) -> Floats:
        """mse, mae, mse_unit or mae_unit of each seed, [seed]."""
        return np.array([record.scores(self.forecast).means()[measure] for record in self.records])

    def mean(self, measure: str = "mse") -> float:
        return float(self.means(measure).mean())

    def spread(self, measure: str = "mse") -> float | None:
        """Standard deviation over seeds; none for a single seed."""
        return spread(self.means(measure))

    def sent(self, what: str) -> float:
        return float(np.mean([record.sent[what] for record in self.records]))

    def megabytes(self) -> float:
        """Sent and received by a client in the whole training, on average."""
        total = [
            (record.sent["total_up"] + record.sent["total_down"]) / len(record.clients)
            for record in self.records
        ]
        return BYTES * float(np.mean(total)) / 1e6

    def daily(self) -> dict[tuple[int, int], float]:
        """MSE by (seed, test period), mean over clients; empty where the records do not have it."""
        found: dict[tuple[int, int], float] = {}
        for record in self.records:
            errors = record.mse_by_period(self.forecast)
            if errors is not None:
                known = np.flatnonzero(np.isfinite(errors).any(axis=0))
                for period in known.tolist():
                    mean = float(np.nanmean(errors[:, period]))
                    found[record.settings["seed"], period] = mean
        return found

    def errors(self) -> Errors:
        return {
            (record.settings["seed"], client): float(mse)
            for record in self.records
            for client, mse in zip(record.clients, record.mse[self.forecast], strict=True)
            if np.isfinite(mse)
        }

    def improves(self, other: Row) -> float:
        """Percentage of the (seed, client) pairs with a lower MSE than in the other row."""
        own, theirs = self.errors(), other.errors()
        better = [own[pair] < theirs[pair] for pair in own.keys() & theirs.keys()]
        return 100 * float(np.mean(better)) if better else float("nan")


@dataclass(frozen=True)
class Comparison:
    """Methods in the order asked for, then references."""

    rows: tuple[Row, ...]

    @property
    def methods(self) -> list[Row]:
        return [row for row in self.rows if row.is_method]

    @property
    def ranking(self) -> list[Row]:
        """Methods, the lowest mean MSE first."""
        return sorted(self.methods, key=lambda row: row.mean())

    @property
    def record(self) -> Record:
        return self.rows[0].records[0]

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)


def spread(values: Floats) -> float | None:
    """Standard deviation over seeds; none for a single seed, 0 for mere rounding errors."""
    if len(values) < 2:
        return None
    found = float(values.std(ddof=1))
    return found if found > 1e-9 * abs(values.mean()) else 0.0


def compare(runs: Sequence[Sequence[Record]], names: Sequence[str] = ()) -> Comparison:
    """Rows of methods from their records, one inner sequence per method, and the references.

    `names` replace the titles of the methods, for rows with the same method.
    """
    rows = [
        Row(name, tuple(records), records[0].title, True)
        for name, records in zip(names or [records[0].title for records in runs], runs, strict=True)
    ]
    first = tuple(runs[0])
    rows += [Row(name, first, name, False) for name in first[0].references]
    return Comparison(tuple(rows))


def paired(row: Row, other: Row) -> Floats:
    """MSE of `other` minus that of `row`, [client], mean over the seeds that drew the client."""
    own, theirs = matched(row.errors(), other.errors())
    return np.asarray(theirs - own)


# -- as a table --------------------------------------------------------------------------------


def table(comparison: Comparison, title: str = "") -> Table:
    """Errors, their spread over seeds, what is sent, and the share of clients that beat Solo."""
    solo = comparison.row("Solo")
    rows: list[list[Cell]] = []
    for row in comparison.rows:
        found = figures(row, solo)
        errors = [found[name] for name in ("mse", "mse_spread", "mae", "mae_spread")]
        sent = [found[f"numbers_{way}"] for way in ("up", "down")]
        numbers = [None if each is None else round(each) for each in sent]
        more = (found["megabytes_per_client"], found["percent_better_than_solo"])
        rows.append([row.name, *errors, *numbers, *more])
    headings = (
        "method | MSE (z-scored) ↓ | MSE ± (sd over seeds) | MAE (z-scored) ↓"
        " | MAE ± (sd over seeds) | up (numbers) | down (numbers)"
        " | in all (MB/client) | beats Solo (% of clients)"
    )
    return Table(columns(headings), rows, title or default_title(comparison))


def default_title(comparison: Comparison) -> str:
    record = comparison.record
    # Patience ends runs at different rounds.
    rounds = sorted({r.rounds for row in comparison.rows for r in row.records})
    spelt = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    return (
        f"Test errors on {record.data_name}, {len(record.clients)} clients,"
        f" {spelt} round{'s' * (rounds != [1])}, split {record.split}{_stretch(record)}"
    )


def _stretch(record: Record) -> str:
    """The test periods of a record that was restricted to some of them."""
    first, last = record.data.get("test_periods", (0, 0))
    return f", test periods {first} to {last}" if last else ""


def notes(comparison: Comparison) -> list[str]:
    """What a reader of the table should know."""
    return [*results(comparison), *general_notes(comparison)]


def results(comparison: Comparison) -> list[str]:
    """What the errors say."""
    return [*significance(comparison), *worth(comparison), *against_references(comparison)]


def general_notes(comparison: Comparison) -> list[str]:
    """How the figures were computed."""
    record = comparison.record
    records = comparison.rows[0].records
    seeds = [r.settings["seed"] for r in records]
    others = len({tuple(sorted(r.clients)) for r in records}) > 1  # under other seeds
    named = ", ".join(str(seed) for seed in seeds)
    drawn = "; a seed also decides which clients are drawn, as in fuels run --seed"
    found = [
        f"Means over the clients, then over seed{'s' if len(seeds) > 1 else ''} {named}"
        f"{drawn if others else ''}.",
        f"Model kept: {kept(comparison)}.",
        "Up and down: numbers sent per participating client in the last round. In all: both"
        " directions over the whole training, mean over all clients, without what is sent only for"
        " evaluation.",
    ]
    if (ahead := record.settings.get("windows", {}).get("horizon", 1)) > 1:
        found.append(f"One-step errors of models that forecast {ahead} steps ahead.")
    if record.mixture:
        found.append(
            "mixture.on: a method's row is the mixture of its model with local experts, not the"
            " model by itself."
        )
    found += own_ways(comparison) + remarks(comparison)
    if len(comparison.methods) > 1:
        found.append(
            "The p-values treat the clients as independent and hold for these trainings only; since"
            " neighbours share the same days, take them as a guide, not as proof."
        )
    found += taken_part(records)
    if record.data["synthetic"]:
        found.append("Synthetic data: the errors say nothing about a real network.")
    return found


def kept(comparison: Comparison) -> str:
    """Which model the errors belong to, and why it is the last; of each row where they differ."""
    records = [(row.name, record) for row in comparison.methods for record in row.records]
    said = {name: dict.fromkeys(_kept(r) for n, r in records if n == name) for name, _ in records}
    if len({text for texts in said.values() for text in texts}) == 1:
        return _kept(comparison.record)
    return "; ".join(f"{name}: {', '.join(texts)}" for name, texts in said.items())


def _kept(record: Record) -> str:
    if record.kept_model != LAST:
        return record.kept_model
    reason = why_last(record.settings["training"].get("keep", "best"), record.data["periods"][1])
    return f"{LAST}, {reason}"


def taken_part(records: Sequence[Record]) -> list[str]:
    """How many clients could not take part, and how many values were filled in."""
    left_out, filled = (
        [int(record.data.get(name, 0)) for record in records]
        for name in ("left_out", "values_filled")
    )
    out, most = max(left_out), max(filled)
    found = []
    if out:
        found.append(f"{count_of(out, 'client')} could not take part; fuels run gives the reason.")
    if most:
        up_to = "Up to " if min(filled) < most else ""  # seeds draw other clients
        verb = "value was" if most == 1 else "values were"
        found.append(f"{up_to}{most} missing {verb} filled in; none of them is a target.")
    return found


def own_ways(comparison: Comparison) -> list[str]:
    """Methods that train differently from the others, as FedDA does in the paper."""
    ways = [_way(row) for row in comparison.methods]
    # The usual way is the most common one of methods without their own optimiser or selection.
    common = [way for row, way in zip(comparison.methods, ways, strict=True) if not _own_way(row)]
    usual = max(common or ways, key=(common or ways).count)
    return [
        f"{row.name} uses its own optimiser and share of clients per round ({way}), the others"
        f" {usual}."
        for row, way in zip(comparison.methods, ways, strict=True)
        if way != usual
    ]


def remarks(comparison: Comparison) -> list[str]:
    """The remarks of the methods, each once."""
    found = [
        find_method(record.method).remark.format(**record.settings["options"])
        for record in (row.records[0] for row in comparison.methods)
    ]
    return [remark for remark in dict.fromkeys(found) if remark]


def _own_way(row: Row) -> bool:
    kind = find_method(row.records[0].method)
    own = (kind.own_optimiser, kind.own_selection)
    return own != (Method.own_optimiser, Method.own_selection)


def _way(row: Row) -> str:
    training = row.records[0].settings["training"]
    momentum = f" with momentum {training['momentum']:g}" if training["momentum"] else ""
    name = "Adam" if training["optimiser"] == "adam" else "SGD"
    share = f"{100 * training['selection']:g} % of the clients"
    return f"{name} {training['learning_rate']:g}{momentum}, {share}"


def significance(comparison: Comparison) -> list[str]:
    """The first method against the second, and FUELS against the first and Solo (Wilcoxon)."""
    ranking = comparison.ranking
    if len(ranking) < 2:
        return []
    found = [_tested(ranking[0], ranking[1])]
    places = {row.name: i for i, row in enumerate(ranking)}
    place = places.get("FUELS", 0)
    if place > 1:
        found.append(
            f"FUELS ranks {place + 1} of {len(ranking)}. {_tested(ranking[0], ranking[place])}"
        )
    solo = places.get("Solo")
    if "FUELS" in places and solo is not None and {place, solo} not in ({0, 1}, {0, place}):
        found.append(_tested(*(ranking[i] for i in sorted((place, solo)))))
    return found


def _tested(first: Row, second: Row) -> str:
    difference = paired(first, second)
    better = f"{100 * (difference > 0).mean():.0f} % of {len(difference)} clients"
    opening = (
        f"{first.name} (MSE {number(first.mean())}) against {second.name}"
        f" ({number(second.mean())}): lower for {better}"
    )
    if len(difference) < 6 or not difference.any():
        return f"{opening}; too few differences for a test."
    p = float(wilcoxon(difference).pvalue)
    test = f"at 5 % (paired Wilcoxon, p = {number(p, 2)})"
    if p >= 0.05:
        return f"{opening}; the difference is not significant {test}."
    # The test uses ranks: a few clients can decide the mean, and the others the test.
    if float(np.sign(difference) @ rankdata(abs(difference))) < 0:
        return (
            f"{opening}; most clients do better with {second.name}, which is significant {test},"
            f" although {first.name} has the lower mean."
        )
    return f"{opening}; the difference is significant {test}."


def against_references(comparison: Comparison) -> list[str]:
    """Whether a reference beats the best method."""
    best = comparison.ranking[0]
    references = {row.name: row.mean() for row in comparison.rows if not row.is_method}
    ahead = [name for name, mean in references.items() if mean < best.mean()]
    if not ahead:
        return [f"No reference ({', '.join(references)}) does better than the best method."]
    return [f"{join(ahead)} {'has' if len(ahead) == 1 else 'have'} a lower MSE than {best.name}."]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The table with all digits, the values of each seed, and the notes."""
    return {
        "title": default_title(comparison),
        "seeds": [record.settings["seed"] for record in comparison.rows[0].records],
        "rows": [figures(row, comparison.row("Solo")) for row in comparison.rows],
        "notes": notes(comparison),
    }


def figures(row: Row, solo: Row | None) -> dict[str, Any]:
    """What is shown of a row, with all digits."""
    up, down = (row.sent(f"numbers_{way}") for way in ("up", "down"))
    sent: dict[str, Any] = {
        "numbers_up": up,
        "numbers_down": down,
        "bytes_up": BYTES * up,
        "bytes_down": BYTES * down,
        "megabytes_per_client": row.megabytes(),
    }
    errors: dict[str, Any] = {}
    for measure in ("mse", "mae"):
        errors[measure] = row.mean(measure)
        errors[f"{measure}_spread"] = row.spread(measure)
        errors[f"{measure}_by_seed"] = row.means(measure).tolist()
    return {
        "name": row.name,
        "kind": "method" if row.is_method else "reference",
        **errors,
        **{measure: row.mean(measure) for measure in ("mse_unit", "mae_unit")},
        **(sent if row.is_method else dict.fromkeys(sent)),
        "percent_better_than_solo": None if solo is None or row is solo else row.improves(solo),
        "runs": [record.key for record in row.records] if row.is_method else [],
    }
