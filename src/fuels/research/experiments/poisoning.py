"""False uploads: what attackers among the clients do to the others, with and without defences.

A share of the clients sends something else than it trained (research/attacks.py); the attackers
know each other, all uploads of the round and the defence. All runs are preset best but for the
defence; `robust` is what preset best has in a federation. Errors are those of the honest clients:
with the personal model, and with the mixture. The harm of an attack is measured against the same
clients in a run with the same defence and without attackers; the cost of a defence, without
attackers, against a run without defences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fuels.arrays import Flags, Floats
from fuels.config import DEFENCE_OF_BEST, PRESETS, Settings, merge
from fuels.evaluation.evaluate import restricted_to_test
from fuels.evaluation.scores import score
from fuels.experts.ensemble import Ensemble, new_ensemble
from fuels.experts.history import history_of
from fuels.methods.registry import find_method
from fuels.report.tables import Cell, Table, columns
from fuels.research.attacks import ATTACKS, Attack, PoisonedTransport, attackers
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.skill import preset_changes
from fuels.research.study.store import run_key
from fuels.runs.build import Job, build
from fuels.runs.settings import resolve
from fuels.storage.models import personal_models

METHODS = ("fuels", "fedavg", "fedrep")
NO_ATTACK, EXPERT = "none", "personal model"
LIMIT, COST = 5.0, 0.5  # percent of MSE: the harm and the cost that are accepted

DEFENCES: dict[str, Mapping[str, Any]] = {
    "off": {},
    "robust": asdict(DEFENCE_OF_BEST),  # in a federation
    "trimmed": {"aggregation": "trimmed"},
    "median": {"aggregation": "median"},
    "krum": {"aggregation": "krum"},
    "clip": {"clip": 1.0},
    "single": {"clip": 2.0, "admission": 5.0},  # robust, without the joint bound
    "directions": {"directions": True},
    "admission": {"admission": 5.0, "directions": True},
    "trials": {"trials": 5},
}
OF_MODELS, OF_PROTOTYPES = ("trimmed", "median", "krum", "clip", "single"), ("directions", "trials")


@dataclass(frozen=True)
class Case:
    """One run: who attacks whom, and how."""

    method: str
    defence: str
    attack: str  # NO_ATTACK or the name of one
    share: float  # percent of the clients
    seed: int


@dataclass(frozen=True)
class Found:
    """What came out of a run, [client] in the order of `ids`."""

    ids: list[str]
    model: list[float]  # MSE on the test part
    mixture: list[float]
    left_out: dict[str, int]  # rounds in which a client's upload was not used
    rounds: int
    inter: float | None  # share of the honest clients that use L_inter at the end

    def means(self, honest: Flags) -> Floats:
        """Of the MSE of model and mixture."""
        return np.array([np.mean(np.array(mse)[honest]) for mse in (self.model, self.mixture)])


def run(context: Context) -> Result:
    wanted = list(cases(context))
    done: dict[Case, Found] = {}
    experts: dict[int, Ensemble] = {}
    for case in wanted:
        done[case] = finished(context, case, experts)
    tables, data, text = {}, {}, []
    for method in context.names("methods", METHODS):
        rows = changes(context, done, method)
        tables[f"poisoning-{method}"] = table(context, method, rows)
        data[f"poisoning-{method}-seeds"] = seeds_table(context, rows)
        text += conclusions(find_method(method).title, rows)
    return Result(tables, {}, [*text, *remarks(context, done)], data=data)


# -- what is run -------------------------------------------------------------------------------


def cases(context: Context) -> Iterator[Case]:
    """Every applicable case, the run without attackers and defences first."""
    kind = "comma-separated numbers above 0 and below 50, in percent"
    shares = context.numbers("shares", kind, lambda share: 0 < share < 50)
    defences = dict.fromkeys(["off", *context.names("defences", DEFENCES)])
    for seed in context.seeds:
        for method in context.names("methods", METHODS):
            for defence in defences:
                if not applies(defence, method):
                    continue
                yield Case(method, defence, NO_ATTACK, 0.0, seed)
                for attack in context.names("attacks", ATTACKS):
                    for share in shares if attacks(ATTACKS[attack], method) else ():
                        yield Case(method, defence, attack, share, seed)


def applies(defence: str, method: str) -> bool:
    return defence not in (OF_MODELS if method == "fuels" else OF_PROTOTYPES)


def attacks(attack: Attack, method: str) -> bool:
    """A model has no phases that could be rolled."""
    return attack.forge is not None or method == "fuels"


def settings_of(context: Context, case: Case) -> Settings:
    preset = preset_changes(context, "best", case.method)
    preset["training"]["rounds"] = context.rounds
    preset["defence"] = dict(DEFENCES[case.defence])
    settings = context.settings(case.method, seed=case.seed, **preset)
    return merge(settings, {"sharing": PRESETS["best"]["sharing"]}, "experiment")


def finished(context: Context, case: Case, experts: dict[int, Ensemble]) -> Found:
    """The outcome of a case, trained now unless it is in the store."""
    settings = resolve(settings_of(context, case))
    key = f"{run_key(settings, context.dataset(settings))}-{case.attack}-{case.share:g}"

    def compute() -> dict[str, Any]:
        return asdict(train(context, settings, case, experts))

    return context.store.once("poisoning", key, compute, lambda content: Found(**content))[0]


def train(context: Context, settings: Settings, case: Case, experts: dict[int, Ensemble]) -> Found:
    with build(settings, context.engine, context.store.panel(settings)) as job:
        ids = job.dataset.ids
        false = attackers(ids, case.share / 100, case.seed)
        if false:
            attack = ATTACKS[case.attack]
            job.loop.transport = PoisonedTransport(
                job.site, false, attack, settings.defence, case.seed
            )
        context.train(job)
        model, mixture = errors(job, case.seed, experts)
        inter = None
        if (trust := job.site.parts.get("trust")) is not None:
            honest = [i for i, client in enumerate(ids) if client not in false]
            inter = float((trust[honest, 0] != 0).double().mean())
        return Found(
            list(ids), model.tolist(), mixture.tolist(), job.loop.left_out, job.loop.round, inter
        )


def errors(job: Job, seed: int, experts: dict[int, Ensemble]) -> tuple[Floats, Floats]:
    """Test MSE of every client's model, and of the mixture with it.

    The local experts do not depend on uploads, so they are fitted once for all runs of a seed.
    """
    dataset, settings = job.dataset, job.settings
    parts = job.site.models(job.loop.final_download())
    models = personal_models(dataset, parts, {}, settings)
    history = history_of(dataset)
    if seed not in experts:
        fitted = new_ensemble(
            models,
            history,
            dataset.split.train,
            title=EXPERT,
            chosen=settings.mixture,
            sharing=settings.sharing,
        )
        fitted.fit(history, [1])
        experts[seed] = fitted
    ensemble = replace(experts[seed].copy(), models=models)
    _, last = dataset.split.part("test")
    backtest = ensemble.run(history, last)
    assert backtest is not None, "there is a test part"
    mixed = restricted_to_test(dataset, backtest).mixed.combined
    alone = job.site.forecast(parts, "test")
    return score(dataset, "test", alone).mse, score(dataset, "test", mixed).mse


# -- tables ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Harm of an attack under a defence, or cost of a defence: percent of MSE, mean over seeds."""

    defence: str
    attack: str
    share: float
    model: float
    mixture: float
    false_out: float  # percent of the attackers' uploads that were not used
    honest_out: float
    by_seed: tuple[tuple[float, float], ...]  # model and mixture, [seed]


def changes(context: Context, done: Mapping[Case, Found], method: str) -> list[Change]:
    """Every defence, attack and share, in the order of the runs."""
    own = [case for case in done if case.method == method and case.seed == context.seeds[0]]
    rows = []
    for first in own:
        relative: list[tuple[float, float]] = []
        out: list[tuple[float, float]] = []
        for seed in context.seeds:
            case = replace(first, seed=seed)
            against = "off" if case.attack == NO_ATTACK else case.defence
            clean = done[replace(case, defence=against, attack=NO_ATTACK, share=0.0)]
            found = done[case]
            false = set(attackers(found.ids, case.share / 100, seed))
            honest = np.array([client not in false for client in found.ids])
            model, mixture = 100 * (found.means(honest) / clean.means(honest) - 1)
            relative.append((float(model), float(mixture)))
            left = np.array([found.left_out.get(client, 0) for client in found.ids]) / found.rounds
            out.append(
                (float(left[~honest].mean()) if false else np.nan, float(left[honest].mean()))
            )
        model, mixture = np.mean(relative, axis=0)
        false_out, honest_out = 100 * np.mean(out, axis=0)
        what = (first.defence, first.attack, first.share)
        rows.append(Change(*what, model, mixture, false_out, honest_out, tuple(relative)))
    return rows


def table(context: Context, method: str, rows: Sequence[Change]) -> Table:
    headings = (
        "defence | attack | attackers (%) | model (MSE change in %) | mixture (MSE change in %)"
        " | attackers' uploads left out (%) | honest uploads left out (%)"
    )
    cells: list[list[Cell]] = [
        [
            row.defence,
            title(row.attack),
            round(row.share),
            percent(row.model),
            percent(row.mixture),
            None if np.isnan(row.false_out) else percent(row.false_out),
            percent(row.honest_out),
        ]
        for row in rows
    ]
    name = f"{find_method(method).title}: errors of the honest clients"
    return Table(columns(headings), cells, name)


def seeds_table(context: Context, rows: Sequence[Change]) -> Table:
    """What each seed found; the other table has the means."""
    cells: list[list[Cell]] = [
        [row.defence, title(row.attack), round(row.share), seed, percent(model), percent(mixture)]
        for row in rows
        for seed, (model, mixture) in zip(context.seeds, row.by_seed, strict=True)
    ]
    headings = "defence | attack | attackers (%) | seed | model (MSE change in %)"
    return Table(columns(f"{headings} | mixture (MSE change in %)"), cells)


def title(attack: str) -> str:
    return ATTACKS[attack].title if attack in ATTACKS else NO_ATTACK


def percent(value: float) -> str:
    """One decimal, or a power of ten where the model is lost."""
    rounded = round(value, 1) + 0.0  # no -0.0
    return f"{rounded:.1f}" if abs(value) < 1e4 else f"{value:.0e}"


def conclusions(title: str, rows: Sequence[Change]) -> list[str]:
    """One sentence for each defence."""
    found = []
    for defence in dict.fromkeys(row.defence for row in rows):
        own = [row for row in rows if row.defence == defence]
        [clean], attacked = [r for r in own if r.attack == NO_ATTACK], own[1:]
        said = f"{title}, defence {defence}:"
        if defence != "off":
            within = "within" if max(clean.model, clean.mixture) <= COST else "above"
            said += (
                f" without attackers it changes the MSE by {clean.model:+.1f} % (model) and"
                f" {clean.mixture:+.1f} % (mixture), {within} the accepted {COST:g} %;"
            )
        parts = []
        for share in dict.fromkeys(row.share for row in attacked):
            at = [row for row in attacked if row.share == share]
            model = max(at, key=lambda row: row.model)
            mixture = max(at, key=lambda row: row.mixture)
            held = sum(max(row.model, row.mixture) <= LIMIT for row in at)
            parts.append(
                f"with {share:g} % attackers the worst is {percent(model.model)} % for the model"
                f" ({model.attack}) and {percent(mixture.mixture)} % for the mixture"
                f" ({mixture.attack}), and {held} of {len(at)} attacks stay within {LIMIT:g} %"
            )
        found.append(f"{said} {'; '.join(parts)}.")
    return found


def remarks(context: Context, done: Mapping[Case, Found]) -> list[str]:
    inter = [
        found.inter
        for case, found in done.items()
        if case.defence == "robust" and found.inter is not None
    ]
    said = [
        "An attack is compared with the same honest clients under the same defence without"
        " attackers, a defence without attackers with none; mean over seeds. Attackers send false"
        " values in every round, know all uploads and the defence, and stay just inside what it"
        " accepts; their own models are not counted."
    ]
    if inter:
        said.append(
            f"Under defence robust, {100 * min(inter):.0f} to {100 * max(inter):.0f} % of the"
            " honest FUELS clients use L_inter at the end of a run."
        )
    return said


EXPERIMENT = Experiment(
    name="poisoning",
    title="False uploads: attacks and defences",
    run=run,
    quick=Budget(clients=12, rounds=6),
    paper=Budget(clients=100, rounds=40, seeds=(0, 1, 2)),
    methods=METHODS,
    options={"shares": "20", "attacks": "all", "defences": "robust", "methods": "all"},
    one_source=True,
    setting="preset best with the named defence; DEFENCES in the experiment's module lists them",
)
