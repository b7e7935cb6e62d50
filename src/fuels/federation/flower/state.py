"""Where a federation stands, as `fuels federation status` tells it."""

from __future__ import annotations

from typing import Any

from fuels.config import read_config
from fuels.federation.flower.parties import Current, ServerFolder
from fuels.federation.flower.registry import states
from fuels.federation.flower.steward import is_busy, is_listening
from fuels.report.folder import read_lines

RECENT = 5  # failures shown


def status(folder: ServerFolder) -> dict[str, Any]:
    """The current run, its round, its sites and the latest failures."""
    current, listening = Current(folder).read(), is_listening(folder)
    run = str(current.get("run", ""))
    state = str(current.get("state", ""))
    if state == "running" and not is_busy(folder):
        state = "interrupted; the server takes it up again by itself"
    lines = read_lines(folder.runs / run / "metrics.jsonl") if run else []
    rounds = read_config(folder.runs / run / "config.toml")[0].training.rounds if run else 0
    failures = [
        f"round {line['round']}: {text}" for line in lines for text in line.get("failures", [])
    ]
    return {
        "listening": listening,
        "run": run,
        "state": state,
        "reason": str(current.get("reason", "")),
        "unconfirmed": [str(site) for site in current.get("unconfirmed", [])],
        "round": lines[-1]["round"] if lines else 0,
        "rounds": rounds,
        "sites": states(folder) if listening else dict.fromkeys(folder.config.sites, "unknown"),
        "failures": failures[-RECENT:],
    }
