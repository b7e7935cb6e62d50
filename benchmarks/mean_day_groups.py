"""Are sums over similar clients worth more than sums over all, if similarity costs budget, too?

    python benchmarks/mean_day_groups.py --data-folder DIR [--groups 1,2,3] [--exact]

As in private_sums.py: 100 Milan cells, 15 of them newcomers with 3 days; experts only, one step
ahead, on days before all test days. Each contributing client first releases its own mean day (24
numbers, noise at the client, --share of the budget). The server divides the clients into groups by
k-means of these days, of at least 10 clients each, and each group has its own mean day, live mean
and statistics from the rest of the budget. A newcomer joins the group whose centre is nearest to
its 3 days, and tells nobody. --exact: the days have no noise and cost nothing, as a bound.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
from mixture_cases import Case, cases
from private_sums import CHOICE_SEEDS, experts, with_newcomers

from fuels.config import Privacy
from fuels.evaluation.evaluate import nothing_shared
from fuels.experts.history import History
from fuels.experts.horizon import fit_horizon
from fuels.privacy.accountant import epsilon_of, loss_for
from fuels.privacy.sensitivity import Protected, Relation, Unit
from fuels.sharing.private_statistics import CLIP
from fuels.sharing.sums import MIN_CLIENTS
from sharing import Errors, numbers, together

TRIES = 20  # of k-means


def mean_days(history: History, end: int) -> np.ndarray:
    """Each client's mean day [client, phase], clipped as in the sums."""
    values = np.clip(history.observed[:, :end], -CLIP, CLIP)
    return np.nanmean(values.reshape(len(values), -1, history.period), axis=1)


def grouped(days: np.ndarray, groups: int, rng: np.random.Generator) -> np.ndarray:
    """The centres [group, phase] of the best k-means with large enough groups."""
    best, found = np.inf, days.mean(axis=0)[None]
    for _ in range(TRIES if groups > 1 else 0):
        centres = days[rng.choice(len(days), groups, replace=False)]
        for _ in range(30):
            nearest = ((days[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
            sizes = np.bincount(nearest, minlength=groups)
            if sizes.min() < MIN_CLIENTS:
                break
            centres = np.stack([days[nearest == g].mean(axis=0) for g in range(groups)])
        else:
            spread = ((days - centres[nearest]) ** 2).sum()
            best, found = (spread, centres) if spread < best else (best, found)
    return found


def errors(case: Case, privacy: Privacy, groups: int, share: float) -> tuple[Errors, list[int]]:
    """Errors of the newcomers, and the sizes of the groups; `share` 0: exact days."""
    dataset, history, new, (mean, std) = with_newcomers(case)
    period, end = history.period, case.fit * history.period
    rng, days = np.random.default_rng(case.seed), mean_days(history, end)
    left = privacy
    if share and groups > 1:
        loss = loss_for(privacy.epsilon, privacy.delta)
        protected = Protected(Unit.HOUR, Relation.REMOVED, 3600)
        noise = protected.cells(CLIP, end, period, period) / sqrt(share * loss) / case.fit
        days[~new] += noise * rng.normal(size=days[~new].shape)
        left = replace(privacy, epsilon=epsilon_of((1 - share) * loss, privacy.delta))
    centres = grouped(days[~new], groups, rng)
    member = ((days[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    first, last = (day * period for day in next(iter(case.windows.values())))
    rows: list[tuple[np.ndarray, ...]] = []
    for group in range(len(centres)):
        own = np.flatnonzero(member == group)
        ids = [dataset.ids[i] for i in own]
        shared = experts(left, history, end, 1, (mean[own], std[own]))
        part = shared.with_live_mean(history.take(own), ids)

        def pooled(until: int, shared=shared, part=part, ids=ids):  # type: ignore[no-untyped-def]
            return shared.coefficients(part, ids, until)

        online = fit_horizon(shared.pool, part, end, pooled=pooled)
        past = online.run(part, end, last)
        local = nothing_shared(part, online, past, last)
        truth = np.where(dataset.target[own, end:last], part.observed[:, end:last], np.nan)
        inside, scale = slice(first - end, last - end), (std / dataset.std)[own, None]
        chosen = new[own]
        rows.append(
            tuple((scale * one[:, inside])[chosen] for one in (truth, past.mixed.combined, local))
        )
    joined = (np.concatenate(each) for each in zip(*rows, strict=True))
    return Errors.of(*joined, period), np.bincount(member[~new]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--groups", default=(1, 2, 3), type=numbers)
    parser.add_argument("--epsilon", default=4.0, type=float)
    parser.add_argument("--share", default=0.1, type=float, help="of the budget, for own mean days")
    parser.add_argument("--exact", action="store_true", help="days without noise, as a bound")
    parser.add_argument("--seeds", default=CHOICE_SEEDS, type=numbers)
    options = parser.parse_args()
    case = next(c for c in cases(options.data_folder, choice=True) if c.name == "Milan")
    heads = ("groups", "clients", "nothing shared", "change", "better", "p, clients", "p, days")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    for groups in options.groups:
        share = 0.0 if options.exact else options.share
        made = [
            errors(
                replace(case, seed=int(seed)), Privacy(epsilon=options.epsilon), int(groups), share
            )
            for seed in options.seeds
        ]
        sizes = "; ".join("+".join(map(str, one)) for _, one in made)
        print(f"| {groups:g} | {sizes} | {together([e for e, _ in made]).line()} |", flush=True)


if __name__ == "__main__":
    main()
