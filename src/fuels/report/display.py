"""Progress while a federation trains: a live panel on a terminal, plain lines anywhere else.

Both are watchers of the round loop and write to stderr, so that stdout carries only results:

    with progress(training.rounds, loop.round) as watcher:
        loop.run([watcher])

Longer steps after the rounds announce themselves through `working`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fuels.report.style import duration, number
from fuels.report.terminal import say

if TYPE_CHECKING:
    from fuels.federation.loop import Loop, Round

Clock = Callable[[], float]

RECENT = 10  # rounds whose mean duration predicts the rest; the slow first round drops out
LINE_EVERY = 2.0  # seconds between plain lines
LINE_SHARE = 0.1  # or this share of all rounds
WIDTH = 88  # columns of the live panel at most


def progress(
    total_rounds: int,
    start_round: int = 0,
    console: Console | None = None,
    *,
    title: str = "training",
) -> Progress:
    """The display that fits the console (stderr if none is given).

    `start_round` is the number of rounds already done: 0, or `loop.round` when a run is resumed.
    """
    console = console or Console(stderr=True)
    kind = LiveProgress if console.is_terminal and not console.is_dumb_terminal else PlainProgress
    return kind(total_rounds, start_round, console, title)


def loop_progress(loop: Loop, console: Console, title: str) -> Progress:
    """The display of a loop that begins or resumes."""
    display = progress(loop.training.rounds, loop.round, console, title=title)
    display.best_score, display.best_round = loop.best_score, loop.best_round
    return display


def working(console: Console | None = None) -> Callable[[str], AbstractContextManager[None]]:
    """Says what is being done: a spinner on a terminal, a plain line elsewhere.

    with working()("drawing pictures"):
        ...
    """
    console = console or Console(stderr=True)

    @contextmanager
    def announce(what: str) -> Iterator[None]:
        if console.is_terminal and not console.is_dumb_terminal:
            with console.status(Text(what)):
                yield
        else:
            say(console, what)
            yield

    return announce


@dataclass(eq=False)
class Progress:
    """The state of a training; the two displays differ in how they show it."""

    total: int
    round: int
    console: Console
    title: str = "training"
    clock: Clock = time.monotonic
    last: Round | None = None
    best_score: float = math.inf
    best_round: int = 0
    failures: int = 0
    over: bool = False
    durations: tuple[float, ...] = ()  # never changed in place: a thread may be drawing

    def __post_init__(self) -> None:
        self.started = self.changed = self.clock()

    def __enter__(self) -> Self:
        self.started = self.changed = self.clock()
        return self

    def __exit__(self, *error: object) -> None:
        """The training is over, finished or not; an interruption passes through."""
        self.over = True

    def on_round(self, done: Round) -> None:
        now = self.clock()
        self.durations = (*self.durations, now - self.changed)[-RECENT:]
        self.changed = now
        self.round = done.number
        self.failures += len(done.failures)
        if done.best_round == done.number:  # by the loop, which compares the same clients alone
            self.best_score, self.best_round = done.val_mse, done.number
        self.last = done

    def seconds_left(self) -> float | None:
        """Estimated from the latest rounds; None before the first one is done."""
        if not self.durations:
            return None
        each = sum(self.durations) / len(self.durations)
        return max(0.0, (self.total - self.round) * each - (self.clock() - self.changed))

    def time(self) -> str:
        """`0:42 left`, and at the end how long it took."""
        spent, left = duration(self.clock() - self.started), self.seconds_left()
        if self.round >= self.total:
            return f"done in {spent}"
        if self.over:
            return f"stopped after {spent}"
        return f"{spent} so far" if left is None else f"{duration(left)} left"

    def losses(self) -> str:
        """`prediction 0.0712, inter 0.301, intra 1.203`: the loss every method has comes first."""
        found = self.last.losses if self.last is not None else {}
        names = sorted(found, key=lambda name: (name != "prediction", name))
        return ", ".join(f"{name} {number(found[name])}" for name in names)

    def validation(self) -> str:
        """Latest and best validation error; empty without a validation part."""
        if self.last is None or math.isnan(self.last.val_mse):
            return ""
        best = f" (best {number(self.best_score)}, round {self.best_round})"
        return f"MSE {number(self.last.val_mse)}{best if self.best_round else ''}"

    def trouble(self) -> str:
        """How many uploads were missing or refused so far, with the newest reason."""
        if not self.failures:
            return ""
        newest = self.last.failures if self.last is not None else []
        reason = f", now {newest[-1].site}: {newest[-1].reason}" if newest else ""
        return f"{self.failures} so far{reason}"


class PlainProgress(Progress):
    """Lines for logs and pipes: the first round, some in between, and the last."""

    shown = 0  # the newest round that has a line
    shown_at = -math.inf

    def on_round(self, done: Round) -> None:
        super().on_round(done)
        first = self.shown == 0
        late = self.clock() - self.shown_at >= LINE_EVERY
        far = done.number - self.shown >= LINE_SHARE * self.total
        if first or late or far or done.number == self.total:
            self._show()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        # A training that was interrupted or stopped early still shows where it ended.
        if self.last is not None and self.round < self.total:
            self._show()

    def _show(self) -> None:
        self.shown, self.shown_at = self.round, self.clock()
        parts = [f"round {self.round:>{len(str(self.total))}} of {self.total}", self.losses()]
        if validation := self.validation():
            parts.append(f"validation {validation}")
        if trouble := self.trouble():
            parts.append(f"failures {trouble}")
        line = " | ".join(part for part in [*parts, self.time()] if part)
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveProgress(Progress):
    """A panel that is redrawn in place, also within a round, so that the clock keeps moving."""

    def __enter__(self) -> Self:
        super().__enter__()
        # Nothing prints results during training, and stdout may be a pipe: do not redirect it.
        self.live = Live(
            get_renderable=self.render,
            console=self.console,
            refresh_per_second=4,
            redirect_stdout=False,
        )
        self.live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        try:
            self.live.stop()
        finally:
            self.console.show_cursor(True)  # also when a second Ctrl-C arrives right here

    def on_round(self, done: Round) -> None:
        super().on_round(done)
        self.live.refresh()

    def render(self) -> Panel:
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(overflow="fold")
        rows.add_row("training loss", self.losses() or "a round is under way")
        if validation := self.validation():
            rows.add_row("validation", validation)
        if trouble := self.trouble():
            rows.add_row("failures", Text(trouble, style="yellow"))
        return Panel(
            Group(self._bar(), rows),
            title=Text(f"{self.title}: round {self.round} of {self.total}", "bold not dim"),
            title_align="left",
            border_style="dim",
            width=min(WIDTH, self.console.width),
        )

    def _bar(self) -> Table:
        bar = Table.grid(padding=(0, 2, 0, 0), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        bar.add_column(justify="right", no_wrap=True)
        line = ProgressBar(self.total, self.round, complete_style="cyan", finished_style="green")
        bar.add_row(line, f"{self.round / self.total:.0%}", self.time())
        return bar
