"""How good the forecasts are: presets, methods, references, and a model of pooled data.

Rows: preset paper and preset best; preset best with every other method instead of FUELS; the model
of preset best without the experts; the best single expert; the references; and one gradient
boosting model on the pooled data of all clients (boosting.py), by itself and as an expert: the
price of privacy. A preset keeps its own number of rounds if the budget allows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuels.arrays import Floats
from fuels.config import ADDED, KEEP, PRESETS
from fuels.errors import FuelsError
from fuels.evaluation.evaluate import targets_in_test
from fuels.evaluation.outcome import method_rows
from fuels.methods.registry import METHODS, find_method
from fuels.report.facts import percentage
from fuels.report.style import number
from fuels.report.tables import Cell, Column, Table, columns
from fuels.research.experiments import boosting
from fuels.research.experiments.base import TRIO, Budget, Context, Experiment, Result
from fuels.research.experiments.grid import (
    Variant,
    by_source,
    dots,
    each_source,
    study,
    title_of,
    wide_table,
)
from fuels.research.study.compare import Comparison, Errors, Row, general_notes
from fuels.research.study.record import Record
from fuels.research.study.worth import against
from fuels.version import not_installed

PAPER, BEST, ALONE, EXPERT = (
    "FUELS, preset paper",
    "FUELS, preset best",
    "FUELS, preset best, model alone",
    "best local expert alone",
)
SOLO = "Solo, preset best"
MODEL = "FUELS model"  # its name among the experts
POOLED_MIXED = f"{boosting.TITLE}, among the experts"


@dataclass(frozen=True)
class DerivedRow(Row):
    """A row without a run: an expert, or a model of pooled data."""

    seed_means: tuple[Mapping[str, float], ...] = ()

    def means(self, measure: str) -> Floats:
        return np.array([means[measure] for means in self.seed_means])

    def errors(self) -> Errors:
        return {}  # there are no errors by client


@dataclass(frozen=True)
class Skill:
    """All rows for one source, and the summaries of the mixtures among them, by row and seed."""

    comparison: Comparison
    mixtures: dict[str, list[dict[str, Any]]]
    expert: str  # the local expert with the lowest MSE
    pooled: list[boosting.Pooled]  # by seed; empty without LightGBM

    def row(self, name: str) -> Row:
        found = self.comparison.row(name)
        assert found is not None
        return found


def run(context: Context) -> Result:
    found = {source: evaluate(context, source, c) for source, c in runs(context).items()}
    shown = {source: skill.comparison for source, skill in found.items()}
    details = {source: detail(skill) for source, skill in found.items()}
    tables = {}
    if len(found) > 1:
        tables["skill"] = wide_table(shown, "Test errors of presets, methods and references")
    tables |= {name: details[source] for source, name in by_source("skill", found).items()}
    tables["skill-experts"] = expert_table(found)
    text = each_source(found, verdicts)
    picture = dots(
        shown,
        "Presets, methods and references",
        blue="preset best",
        diamonds="references and pooled data",
        highlight=BEST,
    )
    text += over_all(found)
    return Result(tables, {"skill": picture}, [*text, *remarks(context, found)])


# -- runs --------------------------------------------------------------------------------------


def runs(context: Context) -> dict[str, Comparison]:
    """Preset paper, then preset best with every method; by source."""
    variants = [Variant(PAPER, changes=preset_changes(context, "paper"))]
    for name in METHODS:
        title = BEST if name == "fuels" else f"{find_method(name).title}, preset best"
        variants.append(Variant(title, name, preset_changes(context, "best", name)))
    return study(context, variants)


def preset_changes(context: Context, preset: str, method: str = "fuels") -> dict[str, Any]:
    """The settings of a preset, overridden by those of the command.

    The published runs were made without sharing and defence and with all values, so they are here
    as well. A method with its own optimiser keeps its learning rate: Adam's would not suit SGD.
    """
    changes = layered({"data": {"implausible": KEEP}}, PRESETS[preset])
    for added in ADDED:
        changes.pop(added, None)
    training = changes.setdefault("training", {})
    training["rounds"] = min(context.rounds, training.get("rounds", context.rounds))
    if find_method(method).own_optimiser.kind != find_method("fuels").own_optimiser.kind:
        training.pop("learning_rate", None)
    return {"preset": preset, **layered(changes, context.changes)}


def layered(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Sections of settings, merged: the last layer that names a setting decides."""
    changes: dict[str, Any] = {}
    for layer in layers:
        for section, values in layer.items():
            changes[section] = {**changes.get(section, {}), **values}
    return changes


def evaluate(context: Context, source: str, comparison: Comparison) -> Skill:
    """The runs of one source, and the rows that need no run."""
    own = {row.name: row for row in comparison.rows}
    best = own[BEST]
    mixtures = {
        row.name: [mixture_of(record) for record in row.records]
        for row in comparison.methods
        if row.name != PAPER
    }
    expert, means = best_expert(mixtures[BEST])
    rows = [
        own[PAPER],
        best,
        Row(ALONE, best.records, method_rows(best.forecast)[1], True),
        *(row for row in comparison.methods if row.name not in (PAPER, BEST)),
        DerivedRow(EXPERT, best.records, expert, False, means),
    ]
    if pooled := pool(context, source):
        alone = tuple(found.alone.means() for found in pooled)
        mixed = tuple(found.mixed.means() for found in pooled)
        for name, means in ((boosting.TITLE, alone), (POOLED_MIXED, mixed)):
            rows.append(DerivedRow(name, best.records, name, False, means))
        mixtures[POOLED_MIXED] = [found.mixture.summary() for found in pooled]
    rows += [row for row in comparison.rows if not row.is_method]
    return Skill(Comparison(tuple(rows)), mixtures, expert, pooled)


def mixture_of(record: Record) -> dict[str, Any]:
    if not record.mixture:
        raise FuelsError(
            f"the record of run {record.key} has no results of its mixture; delete it and run this"
            " command again"
        )
    return record.mixture


def best_expert(mixtures: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[dict[str, float], ...]]:
    """The local expert with the lowest mean MSE over the seeds, and its means by seed."""
    local = local_experts(mixtures)
    name = min(local, key=lambda name: np.mean([means["mse"] for means in local[name]]))
    return name, tuple(local[name])


def local_experts(mixtures: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Means of every expert but the model, by seed."""
    names = [name for name in mixtures[0]["experts"] if name != MODEL]
    return {name: [mixture["experts"][name] for mixture in mixtures] for name in names}


def pool(context: Context, source: str) -> list[boosting.Pooled]:
    """The pooled model of every seed, on the data of preset best."""
    if not boosting.installed():
        return []
    found = []
    for seed in context.seeds:
        settings = context.settings(source=source, seed=seed, **preset_changes(context, "best"))
        dataset, levels = context.dataset(settings), settings.mixture.levels
        fitted = boosting.evaluate_pooled(
            dataset, levels, seed=seed, threads=context.engine.threads
        )
        found.append(fitted)
    return found


# -- tables ------------------------------------------------------------------------------------


def detail(skill: Skill) -> Table:
    """Errors, intervals, how often the model had the largest weight, and what was sent."""
    mixtures = skill.mixtures
    levels = list(next(iter(mixtures.values()))[0]["intervals"])
    rows: list[list[Cell]] = []
    for row in skill.comparison.rows:
        kept = mixtures.get(row.name, [])
        cells: list[Cell] = [row.name, row.mean(), row.spread(), row.mean("mae")]
        for level in levels:
            covered = percentage(mean_of(kept, level, "coverage"))
            cells += [covered, mean_of(kept, level, "width")]
        led = percentage(float(np.mean([m["model_led"] for m in kept])) if kept else None)
        rows.append([*cells, led, round(row.sent("numbers_up")) if row.is_method else None])
    headings = columns("forecast | MSE (z-scored) ↓ | MSE ± (sd over seeds) | MAE (z-scored) ↓")
    for level in levels:
        headings += [Column(f"in {level} %", "% covered"), Column(f"width {level} %", "z-scored")]
    headings += columns("model led (% of steps) | sent (numbers up)")
    record = skill.comparison.record
    title = f"Skill on {record.data_name}, {len(record.clients)} clients, split {record.split}"
    return Table(headings, rows, title)


def mean_of(kept: Sequence[Mapping[str, Any]], level: str, what: str) -> float | None:
    """Mean coverage or width of a level over seeds; none without a mixture."""
    return float(np.mean([m["intervals"][level][what] for m in kept])) if kept else None


def expert_table(found: Mapping[str, Skill]) -> Table:
    """MSE of every local expert by itself, by source."""
    by_source = [local_experts(skill.mixtures[BEST]) for skill in found.values()]
    rows: list[list[Cell]] = [
        [name, *(float(np.mean([m["mse"] for m in local[name]])) for local in by_source)]
        for name in by_source[0]
    ]
    rows.append([BEST, *(skill.row(BEST).mean() for skill in found.values())])
    headings = [Column(f"{title_of(source)} MSE", "z-scored", "lowest") for source in found]
    return Table(
        [Column("expert"), *headings],
        rows,
        "Each local expert by itself, and their mixture with the model",
    )


# -- sentences ---------------------------------------------------------------------------------


def verdicts(skill: Skill) -> list[str]:
    """Who wins, whether preset best beats everything simple, and what pooling would gain."""
    best, paper, reference = skill.row(BEST), skill.row(PAPER), best_reference(skill)
    first = min(skill.comparison.rows, key=lambda row: row.mean())
    others = "" if first is best else f"; {BEST} has {number(best.mean())}"
    found = [
        f"the lowest MSE is that of {first.name} ({number(first.mean())}){others}.",
        f"the MSE of {BEST} is {apart(best, paper)} that of {PAPER} ({number(paper.mean())});"
        f" without the experts, the MSE of its model is {apart(skill.row(ALONE), paper)} that.",
        f"{BEST} is {'' if best.mean() < reference.mean() else 'not '}below every reference:"
        f" {apart(best, reference)} the best one, {reference.name} ({number(reference.mean())}).",
        f"{BEST} is {'' if best.mean() < skill.row(EXPERT).mean() else 'not '}below every local"
        f" expert: {apart(best, skill.row(EXPERT))} the best one, {skill.expert}"
        f" ({number(skill.row(EXPERT).mean())}), which is known only in hindsight.",
    ]
    if solo := skill.comparison.row(SOLO):
        found.append(against(best, solo))
    for name in (boosting.TITLE, POOLED_MIXED) if skill.pooled else ():
        row = skill.row(name)
        found.append(f"{name} has an MSE of {number(row.mean())}: {apart(row, best)} {BEST}.")
    return [*found, *interval_sentence(skill), led_sentence(skill)]


def best_reference(skill: Skill) -> Row:
    """The reference with the lowest MSE, apart from the experts and pooled data."""
    own = (EXPERT, boosting.TITLE, POOLED_MIXED)
    rows = [row for row in skill.comparison.rows if not row.is_method and row.name not in own]
    return min(rows, key=lambda row: row.mean())


def over_all(found: Mapping[str, Skill]) -> list[str]:
    """How preset best compares with the best reference of each source, if there are several."""
    if len(found) == 1:
        return []
    changes = [
        100 * (skill.row(BEST).mean() / best_reference(skill).mean() - 1)
        for skill in found.values()
    ]
    return [
        f"Against the best reference of each source the MSE of {BEST} differs by"
        f" {min(changes):+.1f} to {max(changes):+.1f} %, {np.mean(changes):+.1f} % on average."
    ]


def apart(row: Row, other: Row) -> str:
    """`3.1 % lower than`, by mean MSE."""
    change = 100 * (row.mean() / other.mean() - 1)
    return f"{abs(change):.1f} % {'lower' if change < 0 else 'higher'} than"


def interval_sentence(skill: Skill) -> list[str]:
    kept = skill.mixtures[BEST]
    said = [
        f"the {level} % intervals contained {100 * (mean_of(kept, level, 'coverage') or 0):.1f} %"
        f" of the actual values (mean width {number(mean_of(kept, level, 'width'))})"
        for level in kept[0]["intervals"]
    ]
    return [f"under {BEST}, {' and '.join(said)}."] if said else []


def led_sentence(skill: Skill) -> str:
    kept = skill.mixtures[BEST]
    share = f"{100 * float(np.mean([mixture['model_led'] for mixture in kept])):.0f} %"
    count = len(kept[0]["experts"])
    return f"the neural expert had the largest of {count} weights in {share} of the steps."


def remarks(context: Context, found: Mapping[str, Skill]) -> list[str]:
    """How the figures were made."""
    skill = next(iter(found.values()))
    best, paper = (skill.row(name).records[0] for name in (BEST, PAPER))
    said = [note for note in general_notes(skill.comparison) if not note.startswith("Up and down")]
    said += [
        f"Preset paper trains {paper.rounds} rounds, preset best {best.rounds}. A method under"
        " preset best replaces FUELS: same inputs, same experts.",
        "The ridge references use the lags of preset paper; the ridges among the experts have their"
        " own (skill-experts).",
        *target_remark(context, found),
    ]
    if not skill.pooled:
        said.append(f"There is no row for pooled data: {not_installed('LightGBM', 'boosting')}.")
        return said
    trees = [fitted.trees for one in found.values() for fitted in one.pooled]
    change = [fitted.change for one in found.values() for fitted in one.pooled]
    said.append(
        f"{boosting.TITLE}: one model for all clients with the lags of preset best and of the"
        " widest ridge, the time of the period, the weekday, days off and the client as a category;"
        f" {min(trees)} to {max(trees)} trees, fitted to the change from the last value in"
        f" {sum(change)} of {len(change)} fits, both chosen on the last part of training. Among the"
        " experts it replaces the personal model: the remaining gap is the price of privacy."
    )
    return said


def target_remark(context: Context, found: Mapping[str, Skill]) -> list[str]:
    """Presets look back over different spans, so after long gaps their test steps may differ."""
    differing = []
    for source in found:
        counts = []
        for preset in ("paper", "best"):
            settings = context.settings(source=source, **preset_changes(context, preset))
            counts.append(int(np.isfinite(targets_in_test(context.dataset(settings))).sum()))
        if counts[0] != counts[1]:
            differing.append(f"{title_of(source)} ({counts[0]} and {counts[1]})")
    said = (
        "After long gaps, presets that look back further can be tested on fewer values; presets"
        f" paper and best differ on {', '.join(differing)}."
    )
    return [said] if differing else []


EXPERIMENT = Experiment(
    name="skill",
    title="Forecasting skill: presets, methods, references and pooled data",
    run=run,
    quick=Budget(clients=6, rounds=6),
    paper=Budget(clients=100, rounds=200, seeds=(0, 1, 2)),
    methods=tuple(METHODS),
    sources=TRIO,
    setting="fuels/config.py defines the presets; the rounds they train are below",
)
