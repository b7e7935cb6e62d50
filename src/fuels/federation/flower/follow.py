"""Following a federated run from the server's folder: what `fuels federation run` shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from fuels.errors import FuelsError
from fuels.federation.flower.parties import Current, ServerFolder
from fuels.federation.loop import Round, Watcher
from fuels.federation.transport import Failure
from fuels.storage.run_folder import read_lines

LOOK = 0.5  # seconds between two looks


def follow(
    folder: ServerFolder,
    run: str,
    rounds: int,
    watcher: Watcher,
    alive: Callable[[], None] = lambda: None,
) -> list[str]:
    """Tell the watcher of every round until the run ends; `alive` may raise if it cannot.

    Returns the sites that did not confirm that they have their models. A run that failed or was
    stopped raises FuelsError.
    """
    shown = 0
    while True:
        state = Current(folder).read()
        for line in read_lines(folder.runs / run / "metrics.jsonl"):
            if line["round"] > shown:
                shown = line["round"]
                watcher.on_round(as_round(line, rounds))
        if state.get("run") != run or state.get("state") in ("failed", "stopped"):
            reason = state.get("reason") or "it was stopped"
            raise FuelsError(f"run {run} ended after round {shown}: {reason}")
        if state["state"] == "finished":
            return [str(site) for site in state.get("unconfirmed", [])]
        alive()
        time.sleep(LOOK)


def as_round(line: Mapping[str, Any], rounds: int) -> Round:
    """A line of metrics.jsonl as the round it was written from."""
    nan = float("nan")
    failures = [text.partition(": ") for text in line["failures"]]
    return Round(
        number=line["round"],
        of=rounds,
        clients=line["clients"],
        losses={k.removeprefix("loss_"): v for k, v in line.items() if k.startswith("loss_")},
        val_mse=nan if line["val_mse"] is None else line["val_mse"],
        val_mae=nan if line["val_mae"] is None else line["val_mae"],
        best_round=line.get("best_round", 0),
        numbers_up=line["numbers_up"],
        numbers_down=line["numbers_down"],
        failures=[Failure(site, reason) for site, _, reason in failures],
    )
