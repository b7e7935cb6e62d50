"""Is a live mean of similar clients worth more than that of all, if similarity costs budget, too?

    python benchmarks/mean_day_groups.py --data-folder DIR [--groups 1,2,3] [--epsilons 4,8,20]
    python benchmarks/mean_day_groups.py --data-folder DIR --test

As in private_sums.py: 100 Milan cells, 15 of them newcomers with 3 days; experts only, one step
ahead, on days before all test days. With `privacy.groups`, each contributing client first releases
its own mean day (24 numbers, noise at the client). The groups come from these days, of
at least 10 clients each, and each has its own live mean. A newcomer uses the live mean of the group
that its 3 days resemble most. The last two columns are what everybody reads of a client from its
released day: R2 of its exact mean day, in deviations from the typical day, and the rank correlation
of the distances between clients with those of the exact days.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from mixture_cases import Case, cases
from private_sums import CHOICE_SEEDS, TEST_SEEDS, errors, with_newcomers
from scipy.stats import spearmanr

from fuels.config import Privacy
from fuels.experts.private import PrivateExperts
from fuels.experts.shared import slots
from fuels.research.audit.reconstruct import r2
from fuels.sharing.protection import OWN
from fuels.sharing.similar_clients import own_days
from sharing import numbers, together


def read(case: Case, shared: PrivateExperts) -> tuple[float, float]:
    """What the released mean days say of the exact ones."""
    _, history, new, _ = with_newcomers(case)
    end = case.fit * history.period
    assert shared.protection is not None
    [entry] = shared.protection.ledger.find("benchmark", OWN)
    noised = entry.values / case.fit
    exact = own_days(history.observed[~new, :end], slots(history, 0, end), 24) / case.fit
    pairs = np.triu_indices(len(exact), 1)
    far = [np.linalg.norm(days[pairs[0]] - days[pairs[1]], axis=1) for days in (exact, noised)]
    return r2(noised, exact), float(spearmanr(*far).statistic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--groups", default=(1, 2, 3), type=numbers)
    parser.add_argument("--epsilons", default=(4,), type=numbers)
    parser.add_argument("--unit", default="hour")
    parser.add_argument("--draws", default=1, type=int, help="of the noise")
    parser.add_argument("--test", action="store_true", help="the test days: final figures only")
    options = parser.parse_args()
    case = next(c for c in cases(options.data_folder, choice=not options.test) if c.name == "Milan")
    heads = ("epsilon", "groups", "clients", "nothing shared", "change", "better")
    heads += ("p, clients", "p, days", "R2", "distances")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    for epsilon in options.epsilons:
        for groups in map(int, options.groups):
            privacy = Privacy(epsilon=epsilon, unit=options.unit, groups=groups)
            seeds = TEST_SEEDS if options.test else CHOICE_SEEDS
            found, sizes, days = [], [], []
            for seed in seeds:
                for _ in range(options.draws):
                    own = replace(case, seed=seed)
                    made, shared = errors(own, privacy)
                    assert isinstance(shared, PrivateExperts)
                    found.append(made)
                    if groups > 1:
                        sizes.append("+".join(map(str, shared.guarantee()["groups"])))
                        days.append(read(own, shared))
            said = [f"{one:.2f}" for one in np.mean(days, axis=0)] if days else ["-", "-"]
            cells = f"{epsilon:g} | {groups} | {'; '.join(sizes) or 'all'}"
            print(f"| {cells} | {together(found).line()} | {' | '.join(said)} |", flush=True)


if __name__ == "__main__":
    main()
