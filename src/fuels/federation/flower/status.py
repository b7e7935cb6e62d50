"""The progress of a federation, as shown by `fuels federation run` and `status`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fuels.config import Privacy
from fuels.errors import FuelsError
from fuels.federation.flower import live_record
from fuels.federation.flower.commands import REVOKED, Node, registered, unfinished
from fuels.federation.flower.exclusion import EXCLUDED
from fuels.federation.flower.folders import ServerFolder, key_of
from fuels.federation.flower.records import audit
from fuels.federation.flower.runs import (
    ACTIVE,
    Current,
    current_run,
    is_busy,
    is_listening,
    revoked,
)
from fuels.federation.flower.sum_server import FILE, summary_of
from fuels.federation.loop import Round, Watcher
from fuels.federation.transport import Failure
from fuels.storage.checkpoint import facts_of, load_state
from fuels.storage.config_file import read_config
from fuels.storage.run_folder import read_lines

LOOK = 0.5  # seconds between two checks
RECENT = 5  # failures shown


def follow(
    folder: ServerFolder,
    run: str,
    rounds: int,
    watcher: Watcher,
    alive: Callable[[], None] = lambda: None,
) -> list[str]:
    """Report every round to the watcher until the run ends; `alive` may raise to give up earlier.

    Returns the sites that did not confirm that they saved their models. A run that failed or was
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
        left_out=line.get("left_out", 0),
        failures=[Failure(site, reason) for site, _, reason in failures],
    )


def follow_live(folder: ServerFolder, run: str, say: Callable[[str], None]) -> None:
    """Say each step of a live series until it ends; one that failed or was stopped raises."""
    shown = live_facts(folder, run)
    while True:
        state = Current(folder).read()
        now = live_facts(folder, run)
        if now.get("last") and now["last"] != shown.get("last"):
            say(step_line(now["last"]))
        before = shown.get("skipped", [])
        for each in now.get("skipped", []):
            if each not in before:
                say(_skipped_line(each))
        shown = now
        if state.get("run") != run or not state.get("live") or state.get("state") not in ACTIVE:
            raise FuelsError(
                f"the live series of run {run} ended: {state.get('reason') or 'it was stopped'}"
            )
        time.sleep(LOOK)


def live_facts(folder: ServerFolder, run: str) -> dict[str, Any]:
    """What the server has recorded of a run's live series; nothing if there is none."""
    path = folder.runs / run / live_record.FILE
    if not run or not path.is_file():
        return {}
    facts = facts_of(path)
    counts = facts["counts"]
    steps = max(counts.get("steps", 0) + counts.get("skipped", 0), 1)
    sites = max(len(facts["last"].get("sites", ())), 1)
    carried = counts.get("bytes_up", 0) + counts.get("bytes_down", 0)
    names = ("asked", "last", "skipped", "counts", "refusals")
    return {name: facts[name] for name in names} | {
        "bytes_per_site_and_step": round(carried / steps / sites)
    }


def live_lines(found: Mapping[str, Any]) -> list[str]:
    """A live series for its operator."""
    if not found:
        return []
    counts = found["counts"]
    lines = [step_line(found["last"])] if found["last"] else ["no step has a sum yet"]
    lines.append(
        f"{counts.get('steps', 0)} steps with a sum, {counts.get('skipped', 0)} skipped,"
        f" {found['bytes_per_site_and_step']:,} bytes for each site and step"
    )
    lines += [_skipped_line(each) for each in found["skipped"][-RECENT:]]
    return lines + [f"{site} takes no part: {why}" for site, why in found["refusals"].items()]


def step_line(last: Mapping[str, Any]) -> str:
    sites = ", ".join(last["sites"])
    without = f" (without {', '.join(last['missing'])})" if last.get("missing") else ""
    return (
        f"{last['time']}  {last['values']} values of {sites}{without}, in {last['seconds']:.1f} s"
    )


def _skipped_line(each: Mapping[str, Any]) -> str:
    more = f" and {each['steps'] - 1} more" if each["steps"] > 1 else ""
    return f"{each['time']}{more}  skipped: {each['reason']}"


def status(folder: ServerFolder) -> dict[str, Any]:
    """The current run, its round, its sites and the latest failures."""
    current, listening = current_run(folder), is_listening(folder)
    run = str(current.get("run", ""))
    state = str(current.get("state", ""))
    if current.get("live") and state:
        state = f"live series {state}"
    if state.endswith("running") and not is_busy(folder):
        state = "interrupted; the server resumes it automatically"
    lines = read_lines(folder.runs / run / "metrics.jsonl") if run else []
    config = folder.runs / run / "config.toml"
    settings = read_config(config)[0] if run and config.is_file() else None
    rounds = 0 if settings is None else settings.training.rounds
    masked = settings is not None and settings.privacy.masked
    private = settings is not None and settings.privacy.epsilon > 0
    failures = [
        f"round {line['round']}: {text}" for line in lines for text in line.get("failures", [])
    ]
    refused: dict[str, int] = {}
    for line in lines:
        for text in line.get("failures", []):
            site, _, reason = text.partition(": ")
            refused[site] = refused.get(site, 0) + (" refused: " in reason)
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
        "refused": {site: count for site, count in sorted(refused.items()) if count},
        "excluded": excluded(lines),
        "left_out": lines[-1].get("left_out", 0) if lines else 0,
        "live": live_facts(folder, run),
        "sums": sums_of(folder, run),
        "masked": {"rounds": len(lines)} if masked else {},
        "privacy": asdict(settings.privacy) if settings is not None and private else {},
        "others": others(folder, current) if listening else {},
        "audit": dict(zip(("entries", "last", "problem"), audit(folder).check(), strict=True)),
    }


def sums_of(folder: ServerFolder, run: str) -> dict[str, Any]:
    """The sums of a run so far, as in its summary; nothing if it uses none or has not begun."""
    file = folder.runs / run / FILE
    if not run or not file.is_file():
        return {}
    try:
        return summary_of(*load_state(file))
    except FuelsError:  # it is being replaced, or is damaged
        return {}


def sums_line(sums: Mapping[str, Any]) -> str:
    """The sums of a run in one line."""
    done = [name for name, found in sums.items() if name != "skipped" and isinstance(found, dict)]
    parts = [f"{n.replace('_', ' ')} over {', '.join(sums[n]['sites'])}" for n in done]
    parts += [f"no {n.replace('_', ' ')}: {why}" for n, why in sums["skipped"].items()]
    sent = f"{sums['bytes_up']:,} bytes up, {sums['bytes_down']:,} down"
    return f"sums: {'; '.join(parts)} ({sent})"


def masked_line(found: Mapping[str, Any]) -> str:
    """Masked uploads in one line."""
    return f"masked: the server sees sums only, {found['rounds']} rounds"


def privacy_line(privacy: Privacy) -> str:
    """The guarantee for the sums of a run in one line."""
    unit = "client" if privacy.unit == "client" else f"{privacy.unit} of one client"
    return (
        f"sums carry noise: epsilon {privacy.epsilon:g}, delta {privacy.delta:g} for one {unit}"
        f" ({privacy.relation}), if at most {privacy.colluding} of the sites reveal their noise"
    )


def excluded(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Excluded sites with the reason, from the rounds of a run."""
    texts = [text.partition(": ") for line in lines for text in line.get("failures", [])]
    return {
        site: reason.removeprefix(EXCLUDED)
        for site, _, reason in texts
        if reason.startswith(EXCLUDED)
    }


def others(folder: ServerFolder, current: Mapping[str, Any]) -> dict[str, str]:
    """Flower's unfinished runs other than the current one: of another app, or still waiting."""
    own = str(current.get("flower_run", "")) if current.get("state") in ACTIVE else ""
    try:
        return {number: status for number, status in unfinished(folder).items() if number != own}
    except FuelsError:
        return {}


def states(folder: ServerFolder) -> dict[str, str]:
    """The status of each site in Flower, which lists a dead one as online for half a minute."""
    try:
        nodes = registered(folder)
    except FuelsError:
        return dict.fromkeys(folder.config.sites, "unknown")
    found = {}
    for name, line in folder.config.sites.items():
        node = nodes.get(key_of(line), Node("", "not registered"))
        found[name] = revoked(name) if node.status == REVOKED else node.status
    return found
