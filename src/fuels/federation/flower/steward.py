"""Stands by a SuperLink: makes its keys known and takes up a run that was cut off.

`fuels server start` becomes the SuperLink itself, so that a service manager watches the real
process; just before, it starts this one, which ends with it. Flower keeps registered keys and runs
in its database but does not go on with a ServerApp that was killed: whether one is at work shows in
a lock that the system releases with the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path

from fuels.federation.flower import commands
from fuels.federation.flower.parties import Current, ServerFolder, log, set_up_log

LOOK = 1.0  # seconds between two looks
GRACE = 60.0  # seconds a submitted run has to begin


def submit(folder: ServerFolder) -> str:
    """Hand the current run to Flower; returns "" or the reason why it was not taken."""
    current = Current(folder)
    run = current.read()["run"]
    answer = commands.call(
        commands.start_run(folder, folder.runs / run / "flower.toml"),
        commands.server_environment(folder),
    )
    if not answer.get("success"):
        return str(answer.get("error-message", "no reason given"))
    current.write(flower_run=str(answer["run-id"]))
    return ""


def is_busy(folder: ServerFolder) -> bool:
    """Whether a process is running the rounds at this moment."""
    if not folder.busy.exists():
        return False
    with folder.busy.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_listening(folder: ServerFolder) -> bool:
    config = folder.config
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    try:
        with socket.create_connection((host, config.port), timeout=2):
            return True
    except OSError:
        return False


def register_keys(folder: ServerFolder) -> None:
    """Make the SuperLink accept the keys in server.toml and no others.

    Flower does not tell which node has which key, so what was registered is noted here.
    """
    extra, noted = commands.server_environment(folder), folder.state / "nodes.json"
    known: dict[str, dict[str, str]] = {}
    if noted.exists() and folder.database.exists():
        known = json.loads(noted.read_text(encoding="utf-8"))
    sites = {name: " ".join(line.split()[:2]) for name, line in folder.config.sites.items()}
    for name in [name for name, entry in known.items() if sites.get(name) != entry["key"]]:
        commands.call(commands.unregister(known.pop(name)["node"]), extra)
        log.info("the former key of site %s is not accepted any more", name)
    folder.keys.mkdir(exist_ok=True)
    for name in sorted(set(sites) - set(known)):
        key = folder.keys / f"{name}.pub"
        key.write_text(sites[name] + "\n", encoding="ascii")
        answer = commands.call(commands.register(key, name), extra)
        if answer.get("success"):
            known[name] = {"node": str(answer["node-id"]), "key": sites[name]}
        else:
            message = answer.get("error-message", "")
            log.error("the key of site %s could not be registered: %s", name, message)
    noted.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def stand_by(folder: ServerFolder, parent: int) -> None:
    """Until the SuperLink ends: register keys, then keep the current run going."""
    while not is_listening(folder):
        if os.getppid() != parent:
            return
        time.sleep(0.2)
    register_keys(folder)
    (folder.state / "ready").write_text(str(parent))
    begun = -GRACE
    while os.getppid() == parent:
        now = time.monotonic()
        state = Current(folder).read().get("state")
        if state == "running" and not is_busy(folder) and now - begun > GRACE:
            begun = now
            log.info("the current run is not at work: it is taken up again")
            reason = submit(folder)
            if reason:
                log.error("the run could not be taken up: %s", reason)
        elif state == "submitted":
            begun = now  # `fuels federation run` has just handed it over
        time.sleep(LOOK)


def main() -> None:
    folder = ServerFolder(Path(sys.argv[1]))
    set_up_log(folder.state / "steward.log")
    stand_by(folder, int(sys.argv[2]))


if __name__ == "__main__":
    main()
