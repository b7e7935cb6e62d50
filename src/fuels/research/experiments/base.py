"""What an experiment is: one small module that turns runs into tables and figures.

Each module ends with its `EXPERIMENT`: a name, a title, a function from a `Context` to a `Result`,
and its size at each scale. The context provides settings and finished runs; it decides nothing
about the experiment. `write` writes the files of all experiments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuels.config import Engine, Settings, merge, nearest
from fuels.data.files import write_text
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.report.page.shell import NAME
from fuels.report.study import Part, study_page
from fuels.report.style import save
from fuels.report.tables import Table
from fuels.research.study.options import options_for
from fuels.research.study.progress import SILENT, Reporter
from fuels.research.study.store import RunResult, Store, check_runs, ensure_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fuels.federation.loop import Saver
    from fuels.runs.build import Job

TRIO = ("synthetic:sms", "synthetic:call", "synthetic:net")
NET = ("synthetic:net",)


@dataclass(frozen=True)
class Budget:
    """How large an experiment is."""

    clients: int
    rounds: int
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Result:
    """What an experiment found; the names become file names."""

    tables: Mapping[str, Table]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    text: Sequence[str] = ()  # sentences below the tables
    data: Mapping[str, Table] = field(default_factory=dict)  # CSV files only


@dataclass(frozen=True, kw_only=True)
class Context(Budget):
    """What an experiment may use, and how large it is."""

    sources: tuple[str, ...]  # data: paths or synthetic:{sms,call,net}
    out: Path
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings changed for all runs
    method_options: Mapping[str, str] = field(default_factory=dict)  # for methods that have them
    engine: Engine = field(default_factory=Engine)
    store: Store = field(default_factory=Store)
    reporter: Reporter = SILENT
    options: Mapping[str, str] = field(default_factory=dict)  # the experiment's own

    def settings(
        self,
        method: str = "fuels",
        *,
        source: str | None = None,
        seed: int | None = None,
        **changes: Any,
    ) -> Settings:
        """Settings of one run at the experiment's size; `changes` by section, as in config.toml.

        Defaults of `source` and `seed`: the first of each.
        """
        sized = {"data": {"clients": self.clients}, "training": {"rounds": self.rounds}}
        chosen = {
            "method": method,
            "seed": self.seeds[0] if seed is None else seed,
            "data": {"source": source or self.sources[0]},
            "options": options_for(method, self.method_options),
        }
        settings = merge(merge(Settings(), sized, "experiment"), self.changes, "--set")
        return merge(merge(settings, chosen, "experiment"), changes, "experiment")

    def numbers(
        self,
        option: str,
        kind: str = "comma-separated numbers",
        fits: Callable[[float], bool] = math.isfinite,
        most: float = math.inf,
    ) -> list[float]:
        """At most so many comma-separated numbers of an option, which must fit; `kind` says how."""
        text = self.options[option]
        try:
            found = list(dict.fromkeys(float(word) for word in text.split(",")))
        except ValueError:
            found = []
        if not 0 < len(found) <= most or not all(map(fits, found)):
            raise FuelsError(f"--option {option} takes {kind}, not {text!r}")
        return found

    def whole_numbers(self, option: str) -> list[int]:
        kind = "whole numbers of at least 1"
        return [int(n) for n in self.numbers(option, kind, lambda n: n >= 1 and n.is_integer())]

    def names(self, option: str, known: Collection[str]) -> list[str]:
        """The comma-separated names of an option, or all."""
        text = self.options[option]
        names = list(known) if text == "all" else text.split(",")
        for name in names:
            if name not in known:
                raise FuelsError(f"--option {option}: unknown {name}{nearest(name, known)}")
        return list(dict.fromkeys(names))

    def dataset(self, settings: Settings) -> Dataset:
        """The data of a run; a file is read only once for all runs."""
        return self.store.dataset(settings)

    def check_runs(self, wanted: Sequence[Settings]) -> None:
        """Refuse runs that cannot work, without training."""
        check_runs(wanted, self.store)

    def runs(self, wanted: Sequence[Settings], **needs: bool) -> list[RunResult]:
        """Finished runs in the given order; those already done are reused. For `needs` such as
        with_folder=True, see `ensure_run`."""
        return ensure_runs(wanted, self.engine, self.store, reporter=self.reporter, **needs)

    def train(self, job: Job, saver: Saver | None = None) -> None:
        """Train a job to its end and display its rounds."""
        with self.reporter.rounds(job.loop, job.settings) as shown:
            job.loop.run([shown], saver=saver)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper as a command."""

    name: str
    title: str
    run: Callable[[Context], Result]
    quick: Budget  # within 5 minutes on 2 cores
    paper: Budget = Budget(clients=100, rounds=200)
    sources: tuple[str, ...] = NET  # default data
    find_data: Callable[[], str] | None = None  # finds default data that are not embedded
    methods: tuple[str, ...] = ("fuels",)  # that it trains
    # If `run` handles only one source or seed, it is called for each in turn. `check` refuses what
    # cannot work; it is called for all of them before anything is trained.
    one_source: bool = False
    one_seed: bool = False
    check: Callable[[Context], None] | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # its own, with their defaults
    setting: str = "all else as in the paper unless the command says otherwise"

    def budget(self, scale: str) -> Budget:
        return self.quick if scale == "quick" else self.paper

    def usual_sources(self) -> tuple[str, ...]:
        """The data it uses by default."""
        return self.sources if self.find_data is None else (self.find_data(),)

    def result(self, context: Context) -> Result:
        """Its result for all sources and seeds of the context."""
        sources = [(each,) for each in context.sources] if self.one_source else [context.sources]
        seeds = [(each,) for each in context.seeds] if self.one_seed else [context.seeds]
        parts = {
            _label(source * (len(sources) > 1), seed * (len(seeds) > 1)): replace(
                context, sources=source, seeds=seed
            )
            for source in sources
            for seed in seeds
        }
        if self.check is not None:
            for part in parts.values():
                self.check(part)
        found = {label: self.run(part) for label, part in parts.items()}
        return next(iter(found.values())) if len(found) == 1 else _side_by_side(found)

    def own_options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Its options, defaults included; unknown ones are refused."""
        for name in given:
            if name not in self.options:
                hint = nearest(name, self.options) if self.options else ", nor any other"
                raise FuelsError(f"experiment {self.name} has no option {name}{hint}")
        return {**self.options, **given}


def _label(sources: Sequence[str], seeds: Sequence[int]) -> str:
    """What distinguishes one of several results."""
    names = [Path(source_name(source)).stem for source in sources]
    return ", ".join([*names, *(f"seed {seed}" for seed in seeds)])


def file_name(label: str) -> str:
    """A label as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", label)


def _side_by_side(found: Mapping[str, Result]) -> Result:
    """Several results as one, with their labels in file names, titles and sentences."""
    tables, figures = {}, {}
    data: dict[str, Table] = {}
    text: dict[str, list[str]] = {}  # sentence: whose it is
    for label, result in found.items():
        after = file_name(label)
        for name, table in result.tables.items():
            tables[f"{name}-{after}"] = replace(table, title=f"{table.title} ({label})")
        data |= {f"{name}-{after}": table for name, table in result.data.items()}
        for name, picture in result.figures.items():
            figures[f"{name}-{after}"] = picture
        for sentence in result.text:
            text.setdefault(sentence, []).append(label)
    sentences = [
        sentence if len(labels) == len(found) else f"{'; '.join(labels)}: {sentence}"
        for sentence, labels in text.items()
    ]
    return Result(tables, figures, sentences, data)


def write(experiment: Experiment, context: Context, result: Result, command: str) -> list[Path]:
    """Tables as Markdown and CSV, figures as PNG, and all of it as NAME.md and report.html."""
    out = context.out
    about = subtitle(experiment, context)
    page = [f"# {experiment.title}", "", f"`{command}`", "", about, ""]
    files = [out / f"{experiment.name}.md"]
    for name, table in result.tables.items():
        files.append(write_text(out / f"{name}.csv", table.to_csv()))
        page += [table.to_markdown(), *(f"{said}\n" for said in table.notes)]
    files += [
        write_text(out / f"{name}.csv", table.to_csv()) for name, table in result.data.items()
    ]
    page += [f"- {sentence}" for sentence in result.text] + [""]
    for name, picture in result.figures.items():
        files.append(save(picture, out / f"{name}.png"))
        page += [f"![{experiment.title}]({name}.png)", ""]
    write_text(files[0], "\n".join(page).rstrip() + "\n")
    parts = [Part(name, table) for name, table in result.tables.items()]
    pictures = {name: out / f"{name}.png" for name in result.figures}
    text = study_page(experiment.title, about, command, parts, result.text, pictures)
    files.append(write_text(out / NAME, text))
    return files


def subtitle(experiment: Experiment, context: Context) -> str:
    """The data, the size and the seeds."""
    names = ", ".join(source_name(source) for source in context.sources)
    seeds = ", ".join(str(seed) for seed in context.seeds)
    parts = [f"{context.clients or 'all'} clients"]
    if experiment.methods:  # else nothing is trained
        parts.append(f"{context.rounds} round{'s' * (context.rounds != 1)}")
    parts.append(f"seed{'s' * (len(context.seeds) > 1)} {seeds}")
    return f"Data {names}; {', '.join(parts)}; {experiment.setting}."


def source_name(source: str) -> str:
    """A source as pages show it: the name of a file, without its folder."""
    return source if source.startswith("synthetic:") else Path(source).name
