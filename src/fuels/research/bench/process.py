"""A rival in a separate process, which receives its turns through a pipe.

It starts once and stays warm, so that no turn includes its start-up and the contenders can take
turns. It ends on request, and also when the pipe breaks because this process is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuels.arrays import Floats32
from fuels.errors import FuelsError
from fuels.research.bench.work import Given

START, TURN, END = 120.0, 120.0, 20.0  # seconds of patience
READY = "ready"

Order = tuple[str, int, Given]  # method, round, what the clients of FUELS get
Answer = tuple[float, Floats32]  # seconds, and what the clients made
Serve = Callable[..., None]  # serve(endpoint, *arguments), in the other process


class Endpoint:
    """The rival's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def orders(self) -> Iterator[Order]:
        """Report that everything is set up, then yield orders until there are no more."""
        self.pipe.send(READY)
        while True:
            try:
                order: Order | None = self.pipe.recv()
            except EOFError:
                return
            if order is None:
                return
            yield order

    def answer(self, seconds: float, result: Floats32) -> None:
        self.pipe.send((seconds, result))


class RivalProcess:
    """Our end of the pipe."""

    def __init__(self, name: str, serve: Serve, *arguments: Any) -> None:
        self.name = name
        self.log = Path(tempfile.mkstemp(prefix=f"fuels-bench-{name}-", suffix=".log")[1])
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            name="MainProcess",  # pfl would take any other for a helper and not set itself up
            target=_run,
            args=(serve, theirs, str(self.log), arguments),
            daemon=True,
        )
        self.process.start()
        self.ready = False
        theirs.close()

    def ask(self, order: Order) -> None:
        if not self.ready:
            self.ready = self._receive(START) == READY
        try:
            self.pipe.send(order)
        except OSError:
            raise FuelsError(f"{self.name} has ended: {self._last_log_line()}") from None

    def answer(self) -> Answer:
        answer: Answer = self._receive(TURN)
        return answer

    def close(self) -> None:
        """End the process; kill it if it does not end on request."""
        with contextlib.suppress(OSError):  # it may have ended already
            self.pipe.send(None)
        self.process.join(END)
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(END)
        self.pipe.close()
        self.log.unlink(missing_ok=True)

    def _receive(self, patience: float) -> Any:
        try:
            if not self.pipe.poll(patience):
                raise FuelsError(f"{self.name} did not answer within {patience:.0f} seconds")
            message = self.pipe.recv()
        except (EOFError, OSError):
            raise FuelsError(f"{self.name} has ended: {self._last_log_line()}") from None
        if isinstance(message, Exception):
            raise FuelsError(f"{self.name} failed: {message}")
        return message

    def _last_log_line(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")


def _run(serve: Serve, pipe: Connection, log: str, arguments: tuple[Any, ...]) -> None:
    """The main function of the process; all output, also of its children, goes into the log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us too: the pipe's end ends us
    with Path(log).open("a", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    try:
        serve(Endpoint(pipe), *arguments)
    except (Exception, SystemExit) as error:  # the other side must learn why there is no answer
        first_line = (str(error) or type(error).__name__).split("\n")[0]
        pipe.send(FuelsError(first_line))
        raise
