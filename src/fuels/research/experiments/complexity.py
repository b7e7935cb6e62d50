"""What a round costs: the formulas of the paper's table (Appendix C.3) and a real run.

Each method trains a few rounds, and its costs are counted (see counting.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fuels.report import style
from fuels.report.tables import Cell, Table, columns
from fuels.research.costs import COSTS, Cost, Sizes, costs, known
from fuels.research.experiments.base import Budget, Context, Experiment, Result, source_name
from fuels.research.experiments.counting import Counted, check_formulas, count, sizes_of
from fuels.runs.build import build

MILLION = 1e6


def check(context: Context) -> None:
    for name in known(context.options["methods"]):
        settings = context.settings(name)
        context.check_runs([settings])
        check_formulas(settings, context.dataset(settings))


def run(context: Context) -> Result:
    found: list[tuple[Cost, Counted]] = []
    for name in known(context.options["methods"]):
        settings = context.settings(name)
        job = build(settings, context.engine, context.store.panel(settings))
        sizes = sizes_of(job)
        [cost] = costs(sizes, [name])
        found.append((cost, count(job, context.engine)))
    data = source_name(context.sources[0])
    tables = {
        "complexity-symbols": symbols(sizes),
        "complexity-sent": sent_table(found, sizes, data),
        "complexity-work": work_table(found, data),
        "complexity-server": server_table(found, data),
    }
    text = sentences({pair[0].method: pair for pair in found}, sizes)
    return Result(tables, {"complexity": draw(found, style.origin(job.dataset))}, text)


def symbols(sizes: Sizes) -> Table:
    """The symbols of the appendix as numbers."""
    rows: list[list[Cell]] = [
        ["|w|", "parameters of a model", sizes.model],
        ["|δ|", "parameters of an encoder", sizes.encoder],
        ["B d_r", "numbers in a prototype", sizes.prototype],
        ["I", "batches of a client in a round", sizes.iterations],
        ["I'", "batches of the test part", sizes.test_periods],
        ["FE", "encoder, one batch: (c + q) B 3H (1 + H)", sizes.encode],
        ["FF", "filtering, one batch: B² (d_r + 1)", sizes.filter],
        ["FD", "decoder, one batch: B d_r", sizes.decode],
    ]
    title = "The symbols of the paper's complexity table"
    return Table(columns("symbol | what it is | here"), rows, title)


def sent_table(found: Sequence[tuple[Cost, Counted]], sizes: Sizes, data: str) -> Table:
    headings = "method"
    for what in ("a client sends", "a client gets", "the server sends", "all clients, all rounds"):
        headings += f" | {what} (formula) | {what} (counted)"
    rows: list[list[Cell]] = [[cost.title, *sent(cost, real)] for cost, real in found]
    title = f"Numbers sent in a round, {data}, {sizes.clients} clients, {sizes.rounds} rounds"
    return Table(columns(headings), rows, title)


def sent(cost: Cost, real: Counted) -> list[int]:
    """By formula and as counted, each: up, down, from the server, and over all rounds."""
    names = ("up", "down", "server_down", "total")
    return [round(getattr(each, name)) for name in names for each in (cost, real)]


def work_table(found: Sequence[tuple[Cost, Counted]], data: str) -> Table:
    def millions(operations: float | None) -> float | None:
        return None if operations is None else operations / MILLION

    rows: list[list[Cell]] = []
    for cost, real in found:
        appendix = cost.train_appendix
        work = [*map(millions, (appendix, cost.train, real.train))]
        over = None if appendix is None else real.train / appendix
        after = [*map(millions, (cost.infer_appendix, cost.infer, real.infer))]
        rows.append([cost.title, *work, over, *after])
    ways = ("appendix", "our formula", "counted")
    train, infer = (
        " | ".join(f"{what}, client ({way})" for way in ways) for what in ("training", "inference")
    )
    headings = f"method | {train} | counted over appendix | {infer}"
    title = f"Millions of multiply-adds of matrix products in a round, {data}"
    return Table(columns(headings), rows, title)


def server_table(found: Sequence[tuple[Cost, Counted]], data: str) -> Table:
    headings = (
        "method | server (appendix) | divergences of pairs (our formula)"
        " | divergences of pairs (counted) | multiply-adds, millions (our formula)"
    )
    rows = [
        [cost.title, cost.server_appendix, cost.pairs, real.pairs, cost.server / MILLION]
        for cost, real in found
    ]
    return Table(columns(headings), rows, f"What the server computes in a round, {data}")


def sentences(found: Mapping[str, tuple[Cost, Counted]], sizes: Sizes) -> list[str]:
    text = [
        "The appendix counts a backward pass like a forward pass; in fact it is one product for the"
        " weights and one for the states before the last lag, here"
        f" {sizes.encode_back / sizes.encode:.2f} forward passes of the encoder. Element-wise work"
        " (gates, Adam, L_inter) is not counted.",
        "The compiled kernels skip the products with the first state, which is zero; the counted"
        " run does not use these kernels.",
    ]
    if "fuels" in found and "fedavg" in found:
        (ours, real), (theirs, other) = found["fuels"], found["fedavg"]
        up = 100 * (1 - real.up / other.up)
        appendix = (ours.train_appendix or 0) / (theirs.train_appendix or 1)
        both = 100 * (1 - (real.up + real.down) / (other.up + other.down))
        text.append(
            f"FUELS sends {up:.1f} % fewer numbers up than FedAvg, and {both:.1f} % fewer in both"
            f" directions together; to train, a client multiplies {real.train / other.train:.2f}"
            f" times as much. By the appendix it would be {appendix:.2f} times: its"
            " 3 FE fits an augmented view without a gradient, which it has here."
        )
        text.append(
            "The appendix's entry for the server counts divergences, each over two whole"
            " prototypes, and omits the means PR_n and NR_n; for FedAvg it says 1, where every"
            " parameter of every client is summed. Our formula counts both in multiply-adds. Of"
            " the server's work, the run counts only the divergences: the rest is done in numpy,"
            " which torch's counter does not see."
        )
    return text


def draw(found: Sequence[tuple[Cost, Counted]], footer: str) -> style.Figure:
    """Sent and computed by every method, side by side."""
    from matplotlib.ticker import EngFormatter

    labels = ["sent up", "sent down", "training, appendix", "training, counted"]
    picture, [axes] = style.figure(
        labels,
        columns=2,
        title="What a round costs a client",
        subtitle="Left: numbers sent. Right: multiply-adds of matrix products; for some methods the"
        " appendix has no formula.",
        footer=footer,
        height=max(2.2, 0.42 * len(found)),
    )
    names = [cost.title for cost, _ in found]
    place = np.arange(len(found))
    left, right = axes
    up, down = (np.array([getattr(real, key) for _, real in found]) for key in ("up", "down"))
    left.barh(place, up, 0.6, color=style.METHOD, label=labels[0])
    left.barh(place, down, 0.6, left=up, color="#8cb8d8", label=labels[1])
    appendix = [cost.train_appendix or 0 for cost, _ in found]
    right.barh(place - 0.2, appendix, 0.38, color=style.TRUTH, label=labels[2])
    right.barh(
        place + 0.2, [real.train for _, real in found], 0.38, color=style.RIVAL, label=labels[3]
    )
    for axis, label in ((left, "numbers in a round"), (right, "multiply-adds in a round")):
        axis.set_yticks(place, names)
        axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axis.set_xlabel(label)
        axis.grid(False, axis="y")
    left.invert_yaxis()
    style.legend(picture, left, right)
    return picture


EXPERIMENT = Experiment(
    name="complexity",
    title="Numbers sent and operations per round: formulas and a real run",
    run=run,
    quick=Budget(clients=8, rounds=2),
    paper=Budget(clients=100, rounds=2),
    methods=tuple(COSTS),
    options={"methods": "all"},
    one_source=True,
    one_seed=True,
    check=check,
)
