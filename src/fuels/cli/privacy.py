"""`fuels privacy`: what a budget buys, and what a run has spent."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError

if TYPE_CHECKING:
    from fuels.report.tables import Table
    from fuels.runs.privacy_plan import Plan

SIZES, BUDGET = "Sizes", "Budget"

UNIT = opt.option(
    "hour|day|client",
    "What is protected: an hour, a day or all values of one client.",
    BUDGET,
    default="hour",
    choices=("hour", "day", "client"),
)
RELATION = opt.option(
    "removed|replaced",
    "What the guarantee compares with: these values removed, or replaced by any others.",
    BUDGET,
    default="removed",
    choices=("removed", "replaced"),
)

privacy_app = typer.Typer(
    name="privacy", help="Plan a privacy budget, and read a run's ledger.", no_args_is_help=True
)


@privacy_app.command("plan")
def plan_command(
    clients: int = opt.option("", "Clients that contribute.", SIZES, default=100, min=1),
    sites: int = opt.option(
        "", "Sites that add the noise together; fuels run has one.", SIZES, default=1, min=1
    ),
    history: int = opt.option("", "Days of training, of hourly data.", SIZES, default=40, min=1),
    horizon: int = opt.option("", "Steps ahead to forecast.", SIZES, default=1, min=1, max=24),
    epsilon: float = opt.option("", "How much may be revealed; 1 is strict.", BUDGET, default=4.0),
    delta: float = opt.option("", "Probability that the guarantee fails.", BUDGET, default=1e-5),
    unit: str = UNIT,
    relation: str = RELATION,
    colluding: int | None = opt.option(
        "",
        "Sites that may reveal their noise; the others add more. Default: 1 of several sites, as in"
        " a federation.",
        BUDGET,
        min=0,
    ),
    groups: int = opt.option(
        "", "Groups of similar clients, as privacy.groups in fuels run.", BUDGET, default=1, min=1
    ),
    json_: bool = opt.flag("Print JSON for scripts.", name="--json"),
) -> None:
    """Compute the noise of a private run, and what it costs in accuracy, before anything runs.

    The accuracy is that of the pooled ridge on the embedded synthetic data, with the noise per
    client that your sizes give. It shows whether that noise is small or large.

    Example: fuels privacy plan --clients 85 --sites 5 --history 40 --epsilon 4
    """
    from fuels.config import Privacy
    from fuels.report.tables import show
    from fuels.runs.privacy_plan import Sizes, plan

    privacy = Privacy(epsilon=epsilon, delta=delta, unit=unit, relation=relation, groups=groups)
    tolerated = (1 if sites > 1 else 0) if colluding is None else colluding
    found = plan(Sizes(clients, sites, history, horizon, privacy, tolerated))
    if json_:
        typer.echo(json.dumps(asdict(found), indent=2))
        return
    show([_table(found)], sentences(found))


@privacy_app.command("new")
def new_command(
    ledger: Path = opt.argument("LEDGER", "The file to create."),
    epsilon: float = opt.option("", "Budget of all runs together.", BUDGET, default=8.0),
    delta: float = opt.option("", "Probability that the guarantee fails.", BUDGET, default=1e-5),
    unit: str = UNIT,
    relation: str = RELATION,
) -> None:
    """Create a ledger for several runs on the same data, with one budget for all of them.

    Example: fuels privacy new site.jsonl --epsilon 8
    """
    from fuels.config import Privacy
    from fuels.privacy.ledger import Ledger
    from fuels.sharing.protection import budget_of

    if ledger.exists():
        raise FuelsError(f"{ledger} exists: a ledger keeps its budget; choose another file")
    Ledger(
        budget_of(Privacy(epsilon=epsilon, delta=delta, unit=unit, relation=relation)), ledger
    ).create()
    typer.echo(f"use it with: fuels run --privacy epsilon=2,ledger={ledger}")


@privacy_app.command("spent")
def spent_command(
    run: Path = opt.argument(
        "RUN|SITE|LEDGER", "Folder of a run or of a site of a federation, or a ledger file."
    ),
    json_: bool = opt.flag("Print JSON for scripts.", name="--json"),
) -> None:
    """Show what a ledger says was released, and how much of the budget is spent.

    A site's ledger covers all its runs, and its budget is that of its site.toml.

    Example: fuels privacy spent first
    """
    from fuels.federation.flower.folders import SiteFolder
    from fuels.privacy.ledger import Ledger
    from fuels.report.tables import Table, columns, show
    from fuels.sharing.protection import LEDGER

    site = (run / "site.toml").is_file()
    path = run / "state" / LEDGER if site else run / LEDGER if run.is_dir() else run
    if not path.is_file():
        raise FuelsError(f"{path}: no such privacy ledger; runs with --privacy have one")
    ledger = Ledger.opened(path)
    if site:  # whose owner may have changed the limit
        allowed = SiteFolder(run).config.consent.largest_epsilon
        ledger.budget = replace(ledger.budget, epsilon=allowed)
    rows: list[dict[str, Any]] = [
        {
            "name": entry.release.name,
            "from": _time(entry.release.first),
            "to": _time(entry.release.last),
            "numbers": entry.release.numbers,
            "noise": entry.release.sigma,
        }
        for entry in ledger.entries.values()
    ]
    budget = ledger.budget
    facts: dict[str, Any] = {
        **{name: str(value) for name, value in asdict(budget).items()},
        "spent": ledger.epsilon,
    }
    if json_:
        typer.echo(json.dumps({**facts, "releases": rows}, indent=2))
        return
    said = (
        f"Spent: epsilon {ledger.epsilon:.4g} of {budget.epsilon:g}, at delta {budget.delta:g}, for"
        f" one {budget.unit} of one client ({budget.relation})."
    )
    table = Table(
        columns("release | from | to | numbers | noise"),
        [list(row.values()) for row in rows],
        f"Releases in {path}",
    )
    show([table], [said])


def _time(seconds: int) -> str:
    import numpy as np

    return str(np.datetime64(seconds, "s"))


def _table(found: Plan) -> Table:
    from fuels.report.tables import Table, columns

    rows = [
        (
            line.name,
            line.numbers,
            f"{line.share:.1%}",
            line.sensitivity,
            line.noise,
            line.site,
            line.effect,
        )
        for line in found.lines
    ]
    heads = (
        "release | numbers | of the budget | sensitivity | noise | from each site | the noise is"
    )
    return Table(columns(heads), rows, "Noise of every release (standard deviations)")


def sentences(found: Plan) -> list[str]:
    """The plan in words."""
    sizes, privacy = found.sizes, found.sizes.privacy
    unit = "client" if privacy.unit == "client" else f"{privacy.unit} of one client"
    said = [
        f"Guarantee: epsilon {found.spent:.4g} of {privacy.epsilon:g}, delta {privacy.delta:g}, for"
        f" one {unit} ({privacy.relation})."
    ]
    for each in found.accuracy:
        steps = "step" if each.ahead == 1 else "steps"
        verdict = "better" if each.noised < each.last_value else "NOT better"
        said.append(
            f"Pooled ridge, {each.ahead} {steps} ahead, on synthetic data: MSE {each.noised:.4f}"
            f" with noise, {each.free:.4f} without ({each.cost:+.1%}); {verdict} than the last"
            f" value ({each.last_value:.4f})."
        )
    worst = max(found.accuracy, key=lambda each: each.cost)
    if worst.cost > 0.25:
        said.append(
            "The noise is large: more clients, a longer history, a larger epsilon or a smaller unit"
            f" than {privacy.unit} help; otherwise share nothing."
        )
    if found.similarity is not None:
        said.append(
            "Groups: everybody can read each client's own mean day, but for its noise; the rank"
            " correlation of the distances between such days with those without noise is"
            f" {found.similarity:.2f} (synthetic data)."
        )
    if not found.contributes:
        said.append(
            "The scale of a client would be lost in the noise, so no client would contribute: give"
            " a larger epsilon, or a scale that is known without the data (privacy.scale)."
        )
    if sizes.colluding:
        said.append(
            f"The guarantee holds even if {sizes.colluding} of {sizes.sites} sites collude."
        )
    return said
