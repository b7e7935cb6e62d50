"""What sums with a formal guarantee are worth to newcomers (docs/explanation/privacy.md).

    python benchmarks/private_sums.py --data-folder DIR [--epsilons 8,4,2,1] [--colluding 1]
    python benchmarks/private_sums.py --data-folder DIR --test
    python benchmarks/private_sums.py --run RUN

100 Milan cells, of which 15 are newcomers with 3 days of history: too few to contribute, so 85
cells do, at 5 sites that each add their share of the noise. Experts only, one step ahead. Each line
has the newcomers' MSE with nothing shared, the change with sums, the share of newcomers that
improve, and paired Wilcoxon tests, over three draws of the cells; `noise-free` are the sums of
preset best. Errors are in standard deviations of the whole training part.

The noise differs from run to run (it is cryptographic): --draws repeats each line.

Without --test, the days are 30 November to 10 December, before all test days: the budget's shares,
lags and clipping bounds were chosen on them. --test prints 11-21 December, for the figures only.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from mixture_cases import Case, cases, load

from fuels.config import Privacy, Sharing, newcomer_share
from fuels.data.newcomers import newcomers
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.evaluate import nothing_shared
from fuels.evaluation.outcome import SOLO, SOLO_NOTHING_SHARED
from fuels.experts.history import History, make_history
from fuels.experts.horizon import fit_horizon
from fuels.experts.private import PrivateExperts
from fuels.experts.shared import SharedExperts
from fuels.privacy.ledger import Ledger
from fuels.sharing.protection import Protection, budget_of
from fuels.sharing.sums import LocalSums
from fuels.storage.config_file import read_config
from sharing import Errors, numbers, together

SHARE, DAYS, SITES = 0.15, 3, 5
CHOICE_SEEDS, TEST_SEEDS = (11, 12, 13), (0, 1, 2)
Scale = tuple[np.ndarray, np.ndarray]
BOTH = Sharing(statistics=True, live_mean=True)


def experts(
    privacy: Privacy, history: History, end: int, colluding: int, scale: Scale
) -> SharedExperts:
    if not privacy.epsilon:
        return SharedExperts(LocalSums())
    ledger = Ledger(budget_of(privacy))
    sites = (SITES, colluding) if privacy.groups == 1 else (1, 0)  # groups need one machine
    protection = Protection(privacy, ledger, "benchmark", sites=sites)
    trained = history.times(end, end + 1)[0]
    return PrivateExperts.protected(BOTH, protection, trained, scale)


def with_newcomers(case: Case) -> tuple[Dataset, History, np.ndarray, Scale]:
    """The data of a case in which some clients are new, who they are, and everybody's scale."""
    dataset, history = load(case)
    period, end = history.period, case.fit * history.period
    new = np.isin(dataset.ids, newcomers(dataset.ids, SHARE, case.seed))
    values = history.observed * dataset.std[:, None] + dataset.mean[:, None]
    values[new, : end - DAYS * period] = np.nan
    mean, std = np.nanmean(values[:, :end], axis=1), np.nanstd(values[:, :end], axis=1)
    panel = replace(dataset.panel, values=values[:, dataset.offset :].T)
    history = make_history(panel, period, mean, std, dataset.offset, dataset.calendar)
    return dataset, history, new, (mean, std)


def errors(case: Case, privacy: Privacy, colluding: int = 0) -> tuple[Errors, SharedExperts]:
    """Errors of the newcomers on the first window, and the shared experts."""
    dataset, history, new, (mean, std) = with_newcomers(case)
    period, end = history.period, case.fit * history.period
    first, last = (day * period for day in next(iter(case.windows.values())))
    shared = experts(privacy, history, end, colluding, (mean, std))
    history = shared.with_live_mean(history, dataset.ids)
    online = fit_horizon(
        shared.pool,
        history,
        end,
        pooled=lambda until: shared.coefficients(history, dataset.ids, until),
    )
    past = online.run(history, end, last)
    local = nothing_shared(history, online, past, last)
    truth = np.where(dataset.target[:, end:last], history.observed[:, end:last], np.nan)
    part, scale = slice(first - end, last - end), (std / dataset.std)[new, None]
    rows = (scale * one[new, part] for one in (truth, past.mixed.combined, local))
    return Errors.of(*rows, period), shared


def print_run(folder: Path) -> None:
    """Errors of a finished run with data.newcomers, for newcomers and the others."""
    settings, _ = read_config(folder / "config.toml")
    share, _ = newcomer_share(settings.data.newcomers)
    table = pl.read_parquet(folder / "errors.parquet").pivot(
        "forecast", index="client", values="mse"
    )
    new = newcomers(sorted(table["client"]), share, settings.seed)
    print("| clients | nothing shared | with sums | change | better |\n" + "|---" * 5 + "|")
    for title, wanted in (("newcomers", True), ("others", False)):
        rows = table.filter(pl.col("client").is_in(list(new)) == wanted)
        shared, alone = (rows[name].to_numpy() for name in (SOLO, SOLO_NOTHING_SHARED))
        change = 100 * (shared.mean() / alone.mean() - 1)
        figures = f"{alone.mean():.4f} | {shared.mean():.4f} | {change:+.1f} %"
        print(f"| {title} | {figures} | {(shared < alone).sum()} of {len(rows)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-folder", type=Path)
    parser.add_argument("--run", type=Path, help="a finished run, instead of --data-folder")
    parser.add_argument("--epsilons", default=(0, 8, 4, 2, 1), type=numbers, help="0: no noise")
    parser.add_argument("--unit", default="hour")
    parser.add_argument("--relation", default="removed")
    parser.add_argument("--colluding", default=0, type=int, help="sites that may collude, of 5")
    parser.add_argument("--draws", default=1, type=int, help="of the noise")
    parser.add_argument("--test", action="store_true", help="the test days: final figures only")
    options = parser.parse_args()
    if options.run is not None:
        return print_run(options.run)
    if options.data_folder is None:
        parser.error("--data-folder or --run is needed")
    case = next(c for c in cases(options.data_folder, choice=not options.test) if c.name == "Milan")
    heads = ("epsilon", "spent", "nothing shared", "change", "better", "p, clients", "p, days")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    try:
        for epsilon in options.epsilons:
            privacy = Privacy(epsilon=epsilon, unit=options.unit, relation=options.relation)
            seeds = TEST_SEEDS if options.test else CHOICE_SEEDS
            made = [
                errors(replace(case, seed=seed), privacy, options.colluding)
                for seed in seeds
                for _ in range(options.draws if epsilon else 1)
            ]
            spent = max(one.guarantee().get("epsilon_spent", 0.0) for _, one in made)
            title = f"{epsilon:g}" if epsilon else "noise-free"
            print(
                f"| {title} | {spent:.4f} | {together([e for e, _ in made]).line()} |", flush=True
            )
    except FuelsError as error:
        raise SystemExit(f"private_sums.py: {error}") from None


if __name__ == "__main__":
    main()
