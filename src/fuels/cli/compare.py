"""`fuels compare`: several methods on the same data, over several seeds, in one table."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fuels.cli import options as opt
from fuels.cli.settings import assemble, given, source_name
from fuels.config import SCALES, Engine, nearest
from fuels.data.files import need_writable, write_text
from fuels.errors import FuelsError, InterruptedRunError

if TYPE_CHECKING:
    from fuels.research.study.compare import Comparison

METHODS, OUTPUT = "Methods and training", "Results"
LARGEST_SEED = 2**63 - 1  # the largest integer in TOML

SEEDS = opt.option("0,1,2", "Comma-separated seeds; every method runs once per seed.", METHODS)
SET = opt.option(
    "KEY=VALUE",
    "Any other setting by its name in config.toml, e.g. model.hidden=64; options.tau=0.05"
    " applies to the methods that have it. Can be repeated.",
    METHODS,
    name="--set",
)
ROUNDS = opt.option("N", "Training rounds of each run.", METHODS)
STORE = opt.option(
    "DIR",
    "Folder where finished runs are stored and reused. Default: runs/store.",
    OUTPUT,
    name="--store",
)
RECORDS = opt.option(
    "PATH",
    "Other records of finished runs to reuse: a folder of JSON files, to which the records"
    " of new runs are added, or an archive (.jsonl.xz), which is only read.",
    OUTPUT,
)


@opt.with_read_options()
def compare_command(
    methods: str = opt.option(
        "all|A,B,...", "Comma-separated methods, or all.", METHODS, default="all"
    ),
    data: str | None = opt.DATA_SOURCE,
    clients: int | None = opt.CLIENTS,
    read: opt.ReadOptions = opt.ReadOptions(),
    period: int | None = opt.PERIOD,
    split: str | None = opt.SPLIT,
    rounds: int | None = ROUNDS,
    seeds: str | None = SEEDS,
    scale: str | None = opt.option(
        "|".join(SCALES),
        "quick (24 clients, 30 rounds) or paper (100 clients, 200 rounds). Default without"
        " --data: quick.",
        METHODS,
    ),
    settings_: list[str] | None = SET,
    divide_test: str = opt.option(
        "11,11",
        "Divide the test part into stretches of these lengths, in periods, with a table"
        " for each. Default: one table for the whole test part.",
        OUTPUT,
        default="",
    ),
    out: Path | None = opt.option(
        "DIR",
        "Folder for report.html and compare.md, .csv and .json. Default: runs/compare/DATA.",
        OUTPUT,
    ),
    store: Path | None = STORE,
    records: Path | None = RECORDS,
    json_: bool = opt.flag("Print compare.json instead of the table.", OUTPUT, name="--json"),
    threads: int | None = opt.THREADS,
) -> None:
    """Compare methods on the same data, model and budget.

    Each method is run once per seed, with the settings of the paper. Finished runs with the same
    settings are reused; to continue an interrupted comparison, run the same command again. The
    table also contains the references (naive and ridge) and the amount of data sent; the lines
    below it include a significance test of the best method against the second best.

    Example: fuels compare --methods fuels,fedavg --data traffic.csv --seeds 0,1,2
    """
    changes = given(
        {
            "data": {"source": data, "clients": clients, **read.changes()},
            "windows": {"period": period, "split": split},
            "training": {"rounds": rounds},
        }
    )
    from fuels.report.terminal import say
    from fuels.research.study import periods
    from fuels.research.study.compare import compare
    from fuels.research.study.options import check_options, options_for
    from fuels.research.study.progress import Reporter
    from fuels.research.study.store import DEFAULT_RUNS, Store, ensure_runs
    from fuels.runs.settings import resolve

    own, others = divide(settings_ or [])
    refuse_own(others, {"seed": "--seeds", "method": "--methods", "engine.": "--threads"})
    settings, _, remarks = assemble(changes, "paper", scale, None, others)
    names, numbers = parse_methods(methods), parse_seeds(seeds)
    folder = out or Path("runs") / "compare" / source_name(settings)
    check_options(own, names)
    wanted = [
        resolve(replace(settings, method=name, seed=n, options=options_for(name, own)))
        for name in names
        for n in numbers
    ]
    reporter, runs = Reporter(), Store(store or DEFAULT_RUNS, records)
    with resumable("to continue, run the same fuels compare command again"):
        lengths = periods.parse_lengths(divide_test, "--divide-test")
        # Data that cannot be used are refused before anything is said.
        periods.stretches(lengths, runs.dataset(wanted[0]))
        for remark in remarks:
            say(reporter.console, remark, "yellow")
        need_writable(folder, runs.record_folder)
        engine = Engine(threads=threads or 0)
        done = iter(ensure_runs(wanted, engine, runs, by_period=bool(lengths), reporter=reporter))
        rows = [[next(done).record for _ in numbers] for _ in names]
        datasets = [runs.dataset(settings) for settings in wanted[: len(numbers)]]
        found = periods.divide(rows, datasets, lengths) if lengths else {"": compare(rows)}
        write_and_show(found, folder, json_)


def write_and_show(found: Mapping[str, Comparison], folder: Path, as_json: bool) -> None:
    """The table of a comparison, or of each stretch of the test part by its name."""
    from fuels.report.tables import show
    from fuels.research.study import compare
    from fuels.research.study.page import write_report

    first, *_, last = (*found, *found)
    said = {name: compare.results(comparison) for name, comparison in found.items()}
    said[last] += compare.general_notes(found[first])
    tables = {name: replace(compare.table(each), notes=said[name]) for name, each in found.items()}
    contents = {name: compare.as_json(comparison) for name, comparison in found.items()}
    content = json.dumps(contents.get("", contents), indent=2) + "\n"
    write_text(folder / "compare.json", content)
    page = [f"`{command_line()}`\n"]
    for name, table in tables.items():
        page += [table.to_markdown(), "".join(f"- {note}\n" for note in table.notes)]
        write_text(folder / f"{'-'.join(['compare', *name.split()])}.csv", table.to_csv())
    write_text(folder / "compare.md", "\n".join(page))
    write_report(folder, found, tables, command_line())
    if as_json:
        typer.echo(content, nl=False)
        return
    for name, table in tables.items():
        where = [f"Written to {folder}."] if name == last else []
        show([table], [*table.notes, *where])


def command_line() -> str:
    """The command as given, without the folders of files: pages are read on other machines."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join(["fuels", *words])


# -- reading options ---------------------------------------------------------------------------


def parse_methods(text: str) -> list[str]:
    from fuels.methods.registry import METHODS as PUBLISHED
    from fuels.methods.registry import method_names

    if text == "all":
        return list(PUBLISHED)
    known = method_names()
    names = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in names:
        if name not in known:
            raise FuelsError(f"--methods: unknown method {name}{nearest(name, known)}")
    if not names:
        raise FuelsError("--methods names no method")
    return names


def parse_seeds(text: str | None) -> tuple[int, ...]:
    words = [word.strip() for word in (text or "0").split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise FuelsError(f"--seeds takes comma-separated integers, such as 0,1,2; not {text!r}")
    found = tuple(dict.fromkeys(int(word) for word in words))
    if max(found) > LARGEST_SEED:
        raise FuelsError(f"--seeds: {max(found)} is too large; seeds go up to {LARGEST_SEED}")
    return found


def refuse_own(assignments: Sequence[str], names: Mapping[str, str]) -> None:
    """Settings that a study sets itself, and what to give instead of --set."""
    for text in assignments:
        for name, instead in names.items():
            if text.partition("=")[0].startswith(name):
                raise FuelsError(f"--set {text} has no effect here: use {instead}")


def divide(assignments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options of methods, `options.KEY=VALUE`, and all other assignments."""
    own, others = {}, []
    for text in assignments:
        key, equals, value = text.partition("=")
        if key.startswith("options.") and equals:
            own[key.removeprefix("options.")] = value
        else:
            others.append(text)
    return own, others


@contextmanager
def resumable(hint: str) -> Iterator[None]:
    """Say how to continue when the work is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunError(f"interrupted; {hint}") from None
