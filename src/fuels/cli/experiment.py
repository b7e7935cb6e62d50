"""`fuels experiment`: every table and figure of the paper by its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuels.cli import compare as shared
from fuels.cli import options as opt
from fuels.cli.settings import assignment, given, refuse_idle
from fuels.config import SCALES, Engine, Settings, merge, nearest
from fuels.data.files import need_writable
from fuels.errors import FuelsError
from fuels.research.experiments.registry import EXPERIMENTS, find_experiment

if TYPE_CHECKING:
    from fuels.research.experiments.base import Experiment


def experiment_command(
    name: str = opt.argument(
        "NAME|list",
        "Name of the experiment; list shows all.",
        autocompletion=opt.complete((*EXPERIMENTS, "list")),
    ),
    data: list[str] | None = opt.option(
        "PATH|synthetic:NAME",
        "A file, or synthetic:net, synthetic:call, synthetic:sms. Can be repeated."
        " Default: the data of the experiment.",
        opt.DATA,
    ),
    clients: int | None = opt.CLIENTS,
    period: int | None = opt.PERIOD,
    split: str | None = opt.SPLIT,
    rounds: int | None = shared.ROUNDS,
    seeds: str | None = shared.SEEDS,
    scale: str = opt.option(
        "|".join(SCALES),
        "quick (minutes) or paper (100 clients, 200 rounds: hours).",
        shared.METHODS,
        default="quick",
    ),
    option: list[str] | None = opt.option(
        "KEY=VALUE", "An option of the experiment; see fuels experiment list.", shared.METHODS
    ),
    settings_: list[str] | None = shared.SET,
    out: Path | None = opt.option(
        "DIR", "Folder for tables and figures. Default: runs/experiments/NAME.", shared.OUTPUT
    ),
    store: Path | None = shared.STORE,
    records: Path | None = shared.RECORDS,
    threads: int | None = opt.THREADS,
) -> None:
    """Reproduce a table or figure of the paper, on the embedded data or on your own.

    Writes tables (Markdown, CSV) and figures (PNG). Finished runs are reused, including those of
    fuels compare; to continue an interrupted experiment, run the same command again. Options for
    reading a file are given with --set, such as --set data.resample=1h --set data.how=mean.

    Example: fuels experiment ablation --data traffic.csv --rounds 80
    """
    if name not in (*EXPERIMENTS, "list"):
        raise FuelsError(f"no experiment {name}{nearest(name, [*EXPERIMENTS, 'list'])}")

    if name == "list":
        list_experiments({name: find_experiment(name) for name in EXPERIMENTS})
        return
    if scale not in SCALES:
        raise FuelsError(f"--scale {scale} is unknown{nearest(scale, SCALES)}")

    from fuels.report.tables import show
    from fuels.report.terminal import say
    from fuels.research.experiments.base import Context, file_name, source_name, write
    from fuels.research.study.options import check_options
    from fuels.research.study.progress import Reporter
    from fuels.research.study.store import DEFAULT_RUNS, Store

    experiment, reporter = find_experiment(name), Reporter()
    size = given({"clients": clients, "rounds": rounds})
    if seeds is not None:
        size["seeds"] = shared.parse_seeds(seeds)
    own, others = shared.divide(settings_ or [])
    shared.refuse_own(
        others,
        {
            "data.source": "--data",
            "data.clients": "--clients",
            "training.rounds": "--rounds",
            "engine.": "--threads",
        },
    )
    check_options(own, experiment.methods)
    changes: dict[str, Any] = {"windows": given({"period": period, "split": split})}
    for text in others:
        for section, value in assignment(text).items():
            if not isinstance(value, dict):
                raise FuelsError(f"--set {text}: an experiment sets {section} itself")
            changes.setdefault(section, {}).update(value)
    names = [file_name(Path(source_name(source)).stem) for source in data or ()]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise FuelsError(
            f"--data: two sources are named {twice}, so their tables would have the same name;"
            " rename one of them"
        )
    sources = tuple(data or ()) or experiment.usual_sources()
    if any(source.startswith("synthetic:") for source in sources):
        refuse_idle(merge(Settings(), {"data": changes.get("data", {})}, "--set").data)
    context = Context(
        **{**vars(experiment.budget(scale)), **size},
        sources=sources,
        out=out or Path("runs") / "experiments" / name,
        changes=changes,
        method_options=own,
        engine=Engine(threads=threads or 0),
        store=Store(store or DEFAULT_RUNS, records),
        reporter=reporter,
        options=experiment.own_options(parse_options(option or [])),
    )
    if scale == "quick" and not {"clients", "rounds"} <= size.keys():
        say(
            reporter.console,
            f"--scale quick: {context.clients or 'all'} clients, {context.rounds} rounds; the"
            " paper's size is --scale paper",
            "yellow",
        )
    need_writable(context.out, context.store.record_folder)
    again = f"to continue, run the same fuels experiment {experiment.name} command again"
    with shared.resumable(again):
        result = experiment.result(context)
        files = write(experiment, context, result, shared.command_line())
    more = f" and {len(files) - 1} other files in its folder" if len(files) > 1 else ""
    below = [said for table in result.tables.values() for said in table.notes]
    first = next(iter(result.tables.values()))
    show([first], [*below, *result.text, f"Written to {files[0]}{more}."])


def parse_options(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise FuelsError(f"--option takes KEY=VALUE, not {text!r}")
        found[key] = value
    return found


def list_experiments(known: dict[str, Experiment]) -> None:
    from fuels.report.tables import Table, columns, show

    rows = [
        [
            experiment.name,
            experiment.title,
            f"{experiment.quick.clients or 'all'} x {experiment.quick.rounds}",
            " ".join(f"{key}={value}" for key, value in experiment.options.items()) or "none",
        ]
        for experiment in known.values()
    ]
    headings = columns("name | what it shows | quick (clients x rounds) | own options (--option)")
    show([Table(headings, rows)])
