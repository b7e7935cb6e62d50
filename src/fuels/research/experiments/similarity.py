"""Do prototypes find the same clients similar as their raw data do (Section 5.5, first case study)?

Raw data: the Jensen-Shannon divergence of mean training days, each shifted to start at zero and
scaled to sum to one. Prototypes: the divergences on the server after the last round. For both, a
pair is similar if its divergence is at most the 50th percentile of all pairs. Agreement is the
share of pairs on which both agree; unrelated divergences would agree on half of the pairs, and
`chance` shows how far luck can go, by relabelling clients at random.

Pull: how strongly L_inter still moves a client at the end, from 0 to 1. Its gradient is that of
(cos to NR_n - cos to PR_n) / tau times the sigmoid of the same; the sigmoid is the pull. It is 1/2
for a client equally close to both, and almost 0 a few tau closer to PR_n. It is that of prototypes,
which are means over days: the rows actually trained are less alike and keep more of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.methods.fuels import FuelsOptions
from fuels.paper.similarity import SimilarityTable
from fuels.report import style
from fuels.report.tables import Table, columns
from fuels.research.experiments.base import Budget, Context, Experiment, Result, source_name
from fuels.research.experiments.data import day_shapes, divergences
from fuels.storage.checkpoint import load_state

PERCENTILE = 50.0  # the threshold on both sides
RELABELLINGS = 999
ALIKE, UNLIKE = "#f2b400", "#5b2a86"  # yellow and purple, as in the paper's figure


@dataclass(frozen=True)
class Agreement:
    """How far two matrices of divergences agree on pairs of clients."""

    pairs: int
    rate: float  # share of pairs on which both agree
    chance: float  # mean rate under random relabelling
    chance_high: float  # 95th percentile of it
    luck: float  # share of relabellings that agree at least as well, the true one included
    spearman: float  # rank correlation of the divergences


def agreement(one: Floats, other: Floats, seed: int = 0) -> Agreement:
    """Compare divergences [client, client] of the same clients in the same order."""
    count = len(one)
    if count < 3:
        raise FuelsError(
            f"similarity compares pairs of clients: {count} clients are too few, take at least 3"
        )
    upper = np.triu_indices(count, k=1)
    alike, reference = (values <= threshold(values) for values in (one, other))
    rate = float((alike[upper] == reference[upper]).mean())
    rng = np.random.default_rng([seed, 3])
    drawn = np.empty(RELABELLINGS)
    for i in range(RELABELLINGS):
        # Pairs that share a client are not independent: relabel clients, not pairs.
        order = rng.permutation(count)
        drawn[i] = (alike[np.ix_(order, order)][upper] == reference[upper]).mean()
    return Agreement(
        pairs=len(upper[0]),
        rate=rate,
        chance=float(drawn.mean()),
        chance_high=float(np.percentile(drawn, 95)),
        luck=float((1 + (drawn >= rate).sum()) / (1 + RELABELLINGS)),
        spearman=spearman(one[upper], other[upper]),
    )


def threshold(values: Floats) -> float:
    """The percentile of the divergences of all pairs of different clients."""
    return float(np.percentile(values[np.triu_indices(len(values), k=1)], PERCENTILE))


def spearman(one: Floats, other: Floats) -> float:
    """Rank correlation; NaN if one side is constant."""
    from scipy.stats import spearmanr

    constant = np.ptp(one) == 0 or np.ptp(other) == 0
    return float("nan") if constant else float(spearmanr(one, other).statistic)


def order_by(values: Floats) -> Integers:
    """An order that groups similar clients: average linkage, optimal leaf order."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    distance = squareform(values, checks=False)
    tree = optimal_leaf_ordering(linkage(distance, method="average"), distance)
    return np.asarray(leaves_list(tree), dtype=np.int64)


def ranks(values: Floats) -> Floats:
    """Divergences as percentiles of all pairs, 0 to 100; the diagonal is 0."""
    from scipy.stats import rankdata

    upper = np.triu_indices(len(values), k=1)
    found = np.zeros(values.shape)
    found[upper] = 100 * (rankdata(values[upper]) - 0.5) / len(upper[0])
    return found + found.T


def pull(table: SimilarityTable, beta: float, tau: float) -> tuple[float, float]:
    """How much closer prototypes are to PR_n than to NR_n (median cosine), and the mean pull."""
    names, positive, negative = table.prototypes_for(table.clients, beta)
    own = table.prototypes[[table.position[name] for name in names]]
    own, positive, negative = (
        part / np.linalg.norm(part.astype(np.float64), axis=-1, keepdims=True)
        for part in (own, positive, negative)
    )
    nearer = (own * (positive - negative)).sum(axis=-1)  # [client, row]
    if not nearer.size:  # no client has a dissimilar one
        return float("nan"), float("nan")
    return float(np.median(nearer)), float((1 / (1 + np.exp(nearer / tau))).mean())


def run(context: Context) -> Result:
    rows: list[list[str | float]] = []
    figures: dict[str, style.Figure] = {}
    for source in context.sources:
        for seed in context.seeds:
            settings = context.settings("fuels", source=source, seed=seed)
            [result] = context.runs([settings], with_folder=True)
            assert result.folder is not None
            server, facts = load_state(result.folder.server)
            dataset = context.dataset(settings)
            if tuple(facts["clients"]) != dataset.ids or not server["known"].all():
                raise FuelsError(
                    f"{result.folder.server}: does not hold the prototypes of all clients"
                )
            prototypes = server["jsd"].astype(np.float64)
            raw = divergences(day_shapes(dataset))
            found = agreement(prototypes, raw, seed)
            table = SimilarityTable(facts["clients"], server["prototypes"].shape[1:])
            table.load(server)
            options = FuelsOptions(**result.record.settings["options"])
            nearer, strength = pull(table, options.beta, options.tau)
            shares = (100 * share for share in (found.rate, found.chance, found.chance_high))
            limits = (threshold(prototypes), threshold(raw), nearer, strength)
            name = source_name(source)
            rows.append(
                [name, str(seed), found.pairs, *shares, found.luck, found.spearman, *limits]
            )
            if seed == context.seeds[0]:
                after = f"-{dataset.panel.name}" * (len(context.sources) > 1)
                figures[f"similarity{after}"] = draw(dataset, prototypes, raw, found)
    headings = (
        "data | seed | pairs | agreement (%) | by chance (%)"
        " | by chance, 95th percentile (%) | p | Spearman"
        " | threshold, prototypes (nats) | threshold, raw (nats)"
        " | nearer to PR (cosine) | pull left (0 to 1)"
    )
    title = "Pairs of clients on whose similarity prototypes and raw data agree"
    shown = Table(columns(headings), rows, title)
    return Result({"similarity": shown}, figures, _sentences(rows))


def _sentences(rows: list[list[str | float]]) -> list[str]:
    rates = [float(row[3]) for row in rows]
    span = (
        style.number(min(rates), 3) if len(rates) == 1 else f"{min(rates):.1f} to {max(rates):.1f}"
    )
    return [
        f"Prototypes and raw data agree on {span} % of the pairs. The paper shows a figure with a"
        " few clients for which they agree on all pairs, and gives no rate.",
        "p: share of random relabellings of the clients that agree at least as often.",
        "The two thresholds cannot be compared: one is for rows of 2 x hidden softmax values, the"
        " other for mean days.",
        "Nearer to PR: by how much the cosine of a prototype's row to PR_n exceeds that to NR_n"
        " (median). Pull left: what remains of the gradient of L_inter (mean); it is 1/2 for a row"
        " halfway between the two, and a few rows near that point make up most of the mean.",
    ]


def draw(dataset: Dataset, prototypes: Floats, raw: Floats, found: Agreement) -> style.Figure:
    """Two heat maps with the clients in the same order, that of the raw data."""
    from matplotlib.colors import LinearSegmentedColormap

    order = order_by(raw)
    picture, [axes] = style.figure(
        columns=2,
        title="Similarity of clients by prototypes and by raw data",
        subtitle="Clients in the same order on all axes. Pairs up to the 50th percentile of the"
        f" divergence are similar. Agreement {100 * found.rate:.1f} %,"
        f" by chance {100 * found.chance:.1f} %.",
        footer=style.origin(dataset),
        height=5.1,
        gap=0.25,
    )
    colours = LinearSegmentedColormap.from_list(
        "alike", [ALIKE, "#fbe6a8", "#ffffff", "#cdbfe0", UNLIKE]
    )
    for axis, values, name in zip(
        axes, (prototypes, raw), ("prototypes of the last round", "raw mean days"), strict=True
    ):
        image = axis.imshow(
            ranks(values)[np.ix_(order, order)], cmap=colours, vmin=0, vmax=100, aspect="equal"
        )
        axis.grid(False)
        style.panel_title(axis, name)
        axis.set_xlabel("client, by place in the order")
        style.whole_numbers(axis, "x", "y")
        axis.set_anchor("W")
    axes[0].set_ylabel("client, by place in the order")
    layout = {"ax": axes, "fraction": 0.035, "pad": 0.14, "aspect": 60}
    style.colour_bar(picture, image, "percentile of the divergence", **layout)
    return picture


EXPERIMENT = Experiment(
    name="similarity",
    title="Similarity of clients: prototypes and raw data",
    run=run,
    quick=Budget(clients=24, rounds=30),
    paper=Budget(clients=100, rounds=200, seeds=(0, 1, 2)),
)
