"""The main table: every method on SMS, Call and Net, or on the data given (the paper's Table 1)."""

from __future__ import annotations

from fuels.errors import FuelsError
from fuels.methods.registry import METHODS, find_method
from fuels.report.tables import Table
from fuels.research.experiments import paper
from fuels.research.experiments.base import TRIO, Budget, Context, Experiment, Result, file_name
from fuels.research.experiments.grid import (
    TITLES,
    Variant,
    dots,
    each_source,
    study,
    title_of,
    wide_table,
)
from fuels.research.study.compare import general_notes, results, table

PAPERS_MODEL = 100737  # numbers


def run(context: Context) -> Result:
    chosen = context.names("methods", METHODS)
    variants = [Variant(find_method(name).title, name) for name in METHODS if name in chosen]
    found = study(context, variants)
    tables = {
        "performance": wide_table(found, "Test errors of all methods and references"),
        **{
            f"performance-{file_name(title_of(source).lower())}": with_paper_errors(
                table(comparison), context.options["paper"] or embedded(title_of(source))
            )
            for source, comparison in found.items()
        },
        "performance-paper": paper.table("performance"),
    }
    text = each_source(found, results)
    text += general_notes(next(iter(found.values())))
    model = next(iter(found.values())).row("FedAvg")
    if model is not None and (numbers := round(model.sent("numbers_up"))) != PAPERS_MODEL:
        text.append(
            f"A model has {numbers} numbers here and {PAPERS_MODEL} in the paper, which fits a"
            " decoder that reads the sum of both branches' states (--set model.head=sum); ours"
            " reads both. FedRep is counted by what it sends, which is only the encoder."
        )
    picture = dots(found, "Test error of every method")
    return Result(tables, {"performance": picture}, [*text, paper.NOT_COMPARABLE])


def with_paper_errors(ours: Table, activity: str) -> Table:
    """Our table with the paper's errors on SMS, Call or Net, if that is what the data are."""
    if not activity:
        return ours
    place = 2 * list(TITLES.values()).index(activity)
    errors = paper.TABLES["performance"]["errors"]
    printed = {name: row[place : place + 2] for name, row in errors.items()}
    return paper.with_paper_errors(ours, printed, activity)


def embedded(title: str) -> str:
    """SMS, Call or Net if the data are the embedded ones, else nothing."""
    activity = title.partition(",")[0]
    return activity if activity in TITLES.values() else ""


def check(context: Context) -> None:
    context.names("methods", METHODS)
    if context.options["paper"] not in ("", *TITLES.values()):
        raise FuelsError(
            f"--option paper={context.options['paper']}: the paper's figures are for"
            f" {', '.join(TITLES.values())}"
        )


EXPERIMENT = Experiment(
    name="performance",
    title="Errors of all methods on SMS, Call and Net",
    run=run,
    quick=Budget(clients=16, rounds=12),
    paper=Budget(clients=100, rounds=200, seeds=(0, 1, 2)),
    methods=tuple(METHODS),
    sources=TRIO,
    check=check,
    options={"methods": "all", "divide": "", "paper": ""},
)
