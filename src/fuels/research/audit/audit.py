"""An audit: two trainings under observation, every attack on them, and what they found.

The first training replays the run; the second drops days by coin for membership and linkage. Both
are deterministic, and both take as long as the run, about twice over, because the attacker trains
as many clients of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fuels.config import Engine, Settings
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.report import style
from fuels.report.tables import Cell, Table, columns
from fuels.research.audit import sums
from fuels.research.audit.membership import Membership, linkage, membership, toss
from fuels.research.audit.observed import Seen, Train, observe, run_rounds
from fuels.research.audit.reconstruct import Reached, attacks, chance
from fuels.runs.settings import resolve

LEAST_CLIENTS = 8  # with fewer, figures are chance


@dataclass(frozen=True)
class Audit:
    """What the attackers found."""

    method: str
    clients: int
    rounds: int
    sent: int  # rounds with uploads
    numbers: float  # that a client sent
    reached: tuple[Reached, ...]
    chance: float  # best R2 if days were dealt to clients at random
    membership: Membership
    linked: float  # share of the clients recognised in another run
    sums: Mapping[int, float]  # R2 from shared sums, by the number of clients the attacker knows

    def of(self, attacker: str) -> Reached | None:
        return next((each for each in self.reached if each.attacker == attacker), None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Audit:
        changed = {
            "reached": tuple(Reached(**each) for each in content["reached"]),
            "membership": Membership(**content["membership"]),
            "sums": {int(known): value for known, value in content["sums"].items()},
        }
        return cls(**{**content, **changed})


def audit(
    settings: Settings, engine: Engine, panel: Panel | None = None, train: Train = run_rounds
) -> Audit:
    """Audit the run with these settings."""
    return audited(settings, engine, panel, train)[0]


def audited(
    settings: Settings, engine: Engine, panel: Panel | None, train: Train
) -> tuple[Audit, Seen]:
    """The audit, and what was seen of the first training."""
    settings = resolve(settings)
    first = observe(settings, engine, panel, train)
    assert first.job is not None
    dataset = first.job.dataset
    if first.count < LEAST_CLIENTS:
        raise FuelsError(f"an audit needs at least {LEAST_CLIENTS} clients, not {first.count}")
    coins = toss(settings, dataset)
    second = observe(coins.settings, engine, coins.panel, train)
    found = Audit(
        method=settings.method,
        clients=first.count,
        rounds=settings.training.rounds,
        sent=len(first.rounds),
        numbers=first.numbers,
        reached=tuple(attacks(first)),
        chance=chance(first),
        membership=membership(second, coins),
        linked=linkage(first, second),
        sums={known: sums.reconstruction(dataset, known) for known in (0, first.count - 1)},
    )
    return found, first


def reduced(settings: Settings, clients: int, rounds: int) -> Settings:
    """The settings at a size that an audit finishes in minutes."""
    count = settings.data.clients
    if not settings.data.ids:
        settings = replace(
            settings, data=replace(settings.data, clients=min(count or clients, clients))
        )
    shorter = min(settings.training.rounds, rounds)
    return replace(settings, training=replace(settings.training, rounds=shorter))


# -- what is shown -----------------------------------------------------------------------------


def table(done: Audit) -> Table:
    headings = "attacker | first round with uploads (R2) | best round (R2) | all rounds (R2)"
    rows: list[list[Cell]] = [
        [each.attacker, share(each.first), share(each.one), share(each.every)]
        for each in done.reached
    ]
    rows.append(["chance", None, share(done.chance), None])
    return Table(columns(headings), rows, "What uploads reveal of the clients' mean training days")


def share(value: float) -> str:
    return f"{value:.2f}"


def sentences(done: Audit) -> list[str]:
    """The rest of what was found, and how to read it."""
    worst = max(done.reached, key=lambda each: each.best)
    members = done.membership
    known = max(done.sums)
    return [
        f"{done.clients} clients, {done.rounds} rounds, {done.sent} of them with uploads; a client"
        f" sent {done.numbers:,.0f} numbers in all.",
        f"The most telling attack ({worst.attacker}) explains {100 * worst.best:.0f} % of how the"
        " clients' mean days differ from the typical day; chance would explain"
        f" {100 * done.chance:.0f} %.",
        f"Was this day in the training part? AUC {members.auc:.2f} (0.5: no better than a coin),"
        f" {100 * members.tpr:.0f} % of the members at 1 % false positives; at 95 % confidence"
        f" for each reading tried, epsilon is at least {members.epsilon:.2f}"
        f" ({members.coins} coins, delta 1e-5).",
        f"{100 * done.linked:.0f} % of the clients are recognised in another run with another"
        f" seed; chance: {100 / done.clients:.1f} %.",
        f"Sums over all clients (sharing.statistics): R2 {done.sums[0]:.2f} for a client in the"
        f" sum, and {done.sums[known]:.2f} for one who knows all others' contributions or sees"
        " the sum with and without the client.",
        "R2 is 1 - squared errors / squared deviations from the typical day, on clients whose days"
        " the attacker has not seen, with the scale, the penalty and the round chosen in the"
        " attacker's favour. These are simple attacks: better ones may find more.",
    ]


def picture(done: Audit) -> style.Figure:
    """The R2 of each attacker, from one round and from all."""
    values = {
        "best round": [each.one for each in done.reached],
        "all rounds": [each.every for each in done.reached],
    }
    drawn, [[axis]] = style.figure(
        list(values),
        title="What uploads reveal of the clients' mean days",
        subtitle="R2 beyond the typical day, by attacker; dashed: chance",
        footer=f"{done.method}, {done.clients} clients, {done.rounds} rounds",
    )
    names = [each.attacker for each in done.reached]
    for i, (label, heights) in enumerate(values.items()):
        places = [n + 0.36 * (i - 0.5) for n in range(len(names))]
        axis.bar(places, heights, 0.34, label=label, color=(style.METHOD, style.RIVAL)[i])
    axis.axhline(done.chance, linestyle="--", linewidth=1.0, color=style.QUIET)
    axis.set_xticks(range(len(names)), names)
    axis.set_ylim(0, 1)
    axis.set_ylabel("R2")
    style.legend(drawn, axis)
    return drawn
