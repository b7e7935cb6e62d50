"""Where a federation stands, as `fuels federation status` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuels.config import read_config
from fuels.errors import FuelsError
from fuels.federation.flower.control import unfinished
from fuels.federation.flower.parties import ServerFolder
from fuels.federation.flower.registry import states
from fuels.federation.flower.steward import ACTIVE, is_busy, is_listening, standing
from fuels.storage.run_folder import read_lines

RECENT = 5  # failures shown


def status(folder: ServerFolder) -> dict[str, Any]:
    """The current run, its round, its sites and the latest failures."""
    current, listening = standing(folder), is_listening(folder)
    run = str(current.get("run", ""))
    state = str(current.get("state", ""))
    if state == "running" and not is_busy(folder):
        state = "interrupted; the server takes it up again by itself"
    lines = read_lines(folder.runs / run / "metrics.jsonl") if run else []
    config = folder.runs / run / "config.toml"
    rounds = read_config(config)[0].training.rounds if run and config.is_file() else 0
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
        "others": others(folder, current) if listening else {},
    }


def others(folder: ServerFolder, current: Mapping[str, Any]) -> dict[str, str]:
    """Flower's runs that are not over and not the current one: of another app, or still waiting."""
    own = str(current.get("flower_run", "")) if current.get("state") in ACTIVE else ""
    try:
        return {number: status for number, status in unfinished(folder).items() if number != own}
    except FuelsError:
        return {}
