"""How good the forecasts are: presets, methods, references, and what pooled data would give.

Rows: preset paper and preset best; every other method in the place of FUELS in preset best; the
model of preset best without the experts; the best local expert alone; references; and one gradient
boosting model on the pooled data of all clients (boosting.py), alone and among the experts: the
price of privacy. A preset keeps its own number of rounds where the budget allows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuels.config import PRESETS
from fuels.errors import FuelsError
from fuels.evaluation.outcome import method_rows
from fuels.methods.registry import METHODS, find_method
from fuels.report.style import number
from fuels.report.tables import Cell, Column, Table
from fuels.research.experiments import boosting
from fuels.research.experiments.base import TRIO, Budget, Context, Experiment, Result
from fuels.research.experiments.grid import Variant, dots, study, title_of, wide_table
from fuels.research.study.compare import Comparison, Errors, Floats, Row, general_notes
from fuels.research.study.record import Record
from fuels.version import not_installed

PAPER, BEST, ALONE, EXPERT = (
    "FUELS, preset paper",
    "FUELS, preset best",
    "FUELS, preset best, model alone",
    "best local expert alone",
)
MODEL = "FUELS model"  # its name among the experts
POOLED_MIXED = f"{boosting.TITLE}, among the experts"


@dataclass(frozen=True)
class Told(Row):
    """A row that no run of its own stands behind: an expert, or a model of pooled data."""

    told: tuple[Mapping[str, float], ...] = ()  # means of each seed

    def means(self, measure: str) -> Floats:
        return np.array([means[measure] for means in self.told])

    def errors(self) -> Errors:
        return {}  # clients are not told apart


@dataclass(frozen=True)
class Skill:
    """All rows on one source, and what the mixtures among them kept, by row and seed."""

    comparison: Comparison
    mixtures: dict[str, list[dict[str, Any]]]
    expert: str  # the local expert with the least MSE
    pooled: list[boosting.Pooled]  # by seed; empty without LightGBM

    def row(self, name: str) -> Row:
        found = self.comparison.row(name)
        assert found is not None
        return found


def run(context: Context) -> Result:
    found = {source: judge(context, source, c) for source, c in runs(context).items()}
    shown = {source: skill.comparison for source, skill in found.items()}
    details = {source: detail(skill) for source, skill in found.items()}
    if len(found) == 1:
        tables = {"skill": next(iter(details.values()))}
    else:
        tables = {"skill": wide_table(shown, "Test errors of presets, methods and references")}
        tables |= {f"skill-{title_of(s).lower()}": table for s, table in details.items()}
    tables["skill-experts"] = expert_table(found)
    text = [
        f"{title_of(source)}: {sentence}"
        for source, skill in found.items()
        for sentence in verdicts(skill)
    ]
    picture = dots(
        shown,
        "Presets, methods and references",
        "MSE, mean over the clients; blue: preset best, orange: a method that is lower, diamonds:"
        " references and pooled data.",
        highlight=(BEST,),
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
    """What a preset changes, with the command's own settings above it.

    A method with an optimiser of its own keeps it: a learning rate for Adam is none for SGD.
    """
    changes = layered(PRESETS[preset])
    training = changes.setdefault("training", {})
    training["rounds"] = min(context.rounds, training.get("rounds", context.rounds))
    if find_method(method).own_optimiser.kind != find_method("fuels").own_optimiser.kind:
        training.pop("learning_rate", None)
    return {"preset": preset, **layered(changes, context.changes)}


def layered(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Sections of settings one above the other: the last one that names a setting decides."""
    changes: dict[str, Any] = {}
    for layer in layers:
        for section, values in layer.items():
            changes[section] = {**changes.get(section, {}), **values}
    return changes


def judge(context: Context, source: str, comparison: Comparison) -> Skill:
    """The runs of one source with the rows that need no run of their own."""
    own = {row.name: row for row in comparison.rows}
    best = own[BEST]
    mixtures = {
        row.name: [kept_mixture(record) for record in row.records]
        for row in comparison.methods
        if row.name != PAPER
    }
    expert, told = best_expert(mixtures[BEST])
    rows = [
        own[PAPER],
        best,
        Row(ALONE, best.records, method_rows(best.forecast)[1], True),
        *(row for row in comparison.methods if row.name not in (PAPER, BEST)),
        Told(EXPERT, best.records, expert, False, told),
    ]
    pooled = pool(context, source)
    for name, scores in (
        (boosting.TITLE, [found.alone for found in pooled]),
        (POOLED_MIXED, [found.mixed for found in pooled]),
    ):
        if pooled:
            rows.append(Told(name, best.records, name, False, tuple(s.means() for s in scores)))
    if pooled:
        mixtures[POOLED_MIXED] = [found.mixture.summary() for found in pooled]
    rows += [row for row in comparison.rows if not row.is_method]
    return Skill(Comparison(tuple(rows)), mixtures, expert, pooled)


def kept_mixture(record: Record) -> dict[str, Any]:
    if not record.mixture:
        raise FuelsError(
            f"the record of run {record.key} holds nothing of its mixture; delete it, and this"
            " command makes it anew"
        )
    return record.mixture


def best_expert(mixtures: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[dict[str, float], ...]]:
    """The local expert with the least mean MSE over the seeds, and its means by seed."""
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
        changes = preset_changes(context, "best")
        settings = context.settings(source=source, seed=seed, **changes)
        dataset = context.dataset(settings)
        levels, threads = settings.mixture.levels, context.engine.threads
        found.append(boosting.judge_pooled(dataset, levels, seed=seed, threads=threads))
    return found


# -- tables ------------------------------------------------------------------------------------


def detail(skill: Skill) -> Table:
    """Errors, intervals, how often the model led, and what was sent; of one source."""
    mixtures = skill.mixtures
    levels = list(next(iter(mixtures.values()))[0]["intervals"])
    rows: list[list[Cell]] = []
    for row in skill.comparison.rows:
        kept = mixtures.get(row.name, [])
        cells: list[Cell] = [row.name, row.mean(), row.spread(), row.mean("mae")]
        for level in levels:
            cells += [100 * cover if (cover := mean_of(kept, level, "coverage")) else None]
            cells += [mean_of(kept, level, "width")]
        led = [mixture["model_led"] for mixture in kept]
        cells.append(100 * float(np.mean(led)) if led else None)
        cells.append(round(row.sent("numbers_up")) if row.is_method else None)
        rows.append(cells)
    columns = [
        Column("forecast"),
        Column("MSE", "z-scored", "lowest"),
        Column("MSE ±", "sd over seeds"),
        Column("MAE", "z-scored", "lowest"),
    ]
    for level in levels:
        columns += [Column(f"in {level} %", "% covered"), Column(f"width {level} %", "z-scored")]
    columns += [Column("model led", "% of steps"), Column("sent", "numbers up")]
    record = skill.comparison.record
    data = f"{record.data['name']}{' (synthetic data)' if record.data['synthetic'] else ''}"
    train, val, test = record.data["periods"]
    title = f"Skill on {data}, {len(record.clients)} clients, split {train}/{val}/{test}"
    return Table(columns, rows, title)


def mean_of(kept: Sequence[Mapping[str, Any]], level: str, what: str) -> float | None:
    """Mean over seeds of the coverage or the width of a level; none without a mixture."""
    return float(np.mean([m["intervals"][level][what] for m in kept])) if kept else None


def expert_table(found: Mapping[str, Skill]) -> Table:
    """MSE of every local expert alone, by source."""
    by_source = [local_experts(skill.mixtures[BEST]) for skill in found.values()]
    rows: list[list[Cell]] = [
        [name, *(float(np.mean([m["mse"] for m in local[name]])) for local in by_source)]
        for name in by_source[0]
    ]
    rows.append([BEST, *(skill.row(BEST).mean() for skill in found.values())])
    columns = [
        Column("expert"),
        *(Column(f"{title_of(s)} MSE", "z-scored", "lowest") for s in found),
    ]
    return Table(columns, rows, "Every local expert alone, and their mixture with the model")


# -- sentences ---------------------------------------------------------------------------------


def verdicts(skill: Skill) -> list[str]:
    """Who wins, whether preset best is below all that is simple, and what pooling would bring."""
    best, paper, reference = skill.row(BEST), skill.row(PAPER), best_reference(skill)
    first = min(skill.comparison.rows, key=lambda row: row.mean())
    others = "" if first is best else f"; {BEST} has {number(best.mean())}"
    found = [
        f"the lowest MSE is that of {first.name} ({number(first.mean())}){others}.",
        f"{BEST} has an MSE {apart(best, paper)} {PAPER} ({number(paper.mean())}), its model"
        f" without the experts one {apart(skill.row(ALONE), paper)} that.",
        f"{BEST} is {'' if best.mean() < reference.mean() else 'not '}below every reference:"
        f" {apart(best, reference)} the best one, {reference.name} ({number(reference.mean())}).",
        f"{BEST} is {'' if best.mean() < skill.row(EXPERT).mean() else 'not '}below every local"
        f" expert: {apart(best, skill.row(EXPERT))} the best one, {skill.expert}"
        f" ({number(skill.row(EXPERT).mean())}), which is known only in hindsight.",
    ]
    for name in (boosting.TITLE, POOLED_MIXED) if skill.pooled else ():
        row = skill.row(name)
        found.append(f"{name} has MSE {number(row.mean())}: {apart(row, best)} {BEST}.")
    return [*found, *interval_sentence(skill), led_sentence(skill)]


def best_reference(skill: Skill) -> Row:
    """The reference with the least MSE; experts and pooled data have rows of their own."""
    own = (EXPERT, boosting.TITLE, POOLED_MIXED)
    rows = [row for row in skill.comparison.rows if not row.is_method and row.name not in own]
    return min(rows, key=lambda row: row.mean())


def over_all(found: Mapping[str, Skill]) -> list[str]:
    """How preset best compares with the best reference of each source, over several of them."""
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
        f"{100 * (mean_of(kept, level, 'coverage') or 0):.1f} % of the values lie in the"
        f" {level} % interval (mean width {number(mean_of(kept, level, 'width'))})"
        for level in kept[0]["intervals"]
    ]
    return [f"under {BEST}, {' and '.join(said)}."] if said else []


def led_sentence(skill: Skill) -> str:
    kept = skill.mixtures[BEST]
    count = len(kept[0]["experts"])
    led = 100 * float(np.mean([mixture["model_led"] for mixture in kept]))
    return f"the neural expert led {count - 1} others in {led:.0f} % of the clients' steps."


def remarks(context: Context, found: Mapping[str, Skill]) -> list[str]:
    """How the figures were made."""
    skill = next(iter(found.values()))
    best, paper = (skill.row(name).records[0] for name in (BEST, PAPER))
    said = [note for note in general_notes(skill.comparison) if not note.startswith("Up and down")]
    said += [
        f"Preset paper trains {paper.rounds} rounds, preset best {best.rounds}. A method under"
        " preset best takes the place of FUELS: same inputs, same experts.",
        "Ridge rows see the lags of preset paper; those of the experts have their own"
        " (skill-experts).",
        *target_remark(context, found),
    ]
    if not skill.pooled:
        said.append(f"There is no row for pooled data: {not_installed('LightGBM', 'boosting')}.")
        return said
    trees = [fitted.trees for one in found.values() for fitted in one.pooled]
    change = [fitted.change for one in found.values() for fitted in one.pooled]
    said.append(
        f"{boosting.TITLE}: one model for all clients with the lags of preset best and of the"
        " widest ridge, time of the period, weekday, free days and the client as a category;"
        f" {min(trees)} to {max(trees)} trees, of the change against the last value in"
        f" {sum(change)} of {len(change)} fits, both chosen on the last part of training. Among the"
        " experts it takes the place of the personal model: what is left is the price of privacy."
    )
    return said


def target_remark(context: Context, found: Mapping[str, Skill]) -> list[str]:
    """Presets look back differently far, so after long gaps they may judge different steps."""
    differing = []
    for source in found:
        judged = []
        for preset in ("paper", "best"):
            changes = preset_changes(context, preset)
            dataset = context.dataset(context.settings(source=source, **changes))
            first, last = dataset.split.part("test")
            judged.append(int(dataset.target[:, first:last].sum()))
        if judged[0] != judged[1]:
            differing.append(f"{title_of(source)} ({judged[0]} and {judged[1]})")
    if not differing:
        return []
    return [
        "After long gaps presets that look back further have fewer values to be judged on; under"
        f" presets paper and best they differ on {', '.join(differing)}."
    ]


EXPERIMENT = Experiment(
    name="skill",
    title="Forecasting skill: presets, methods, references and pooled data",
    run=run,
    quick=Budget(clients=6, rounds=6),
    paper=Budget(clients=100, rounds=200, seeds=(0, 1, 2)),
    methods=tuple(METHODS),
    sources=TRIO,
    setting="what each preset sets is in fuels/config.py, and the rounds it trains are below",
)
