"""Stands by a SuperLink: makes the sites' keys known and takes up a run that was cut off.

`fuels server start` becomes the SuperLink itself, so that a service manager watches the real
process; just before, it starts this one, which ends with it. It can be a service of its own too.
Flower keeps registered keys and runs in its database but does not go on with a ServerApp that was
killed: whether one is at work shows in a lock that the system releases with the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path

from fuels.errors import FuelsError
from fuels.federation.flower import commands
from fuels.federation.flower.bundle import update_app
from fuels.federation.flower.lifeline import end_with_parent
from fuels.federation.flower.parties import Current, ServerFolder, key_of, log, set_up_log

LOOK = 1.0  # seconds between two looks
GRACE = 60.0  # seconds a submitted run has to begin


def submit(folder: ServerFolder) -> str:
    """Hand the current run to Flower; returns "" or the reason why it was not taken."""
    current = Current(folder)
    run = current.read()["run"]
    update_app(folder)
    answer = commands.call(
        commands.start_run(folder, str(folder.runs / run / "flower.toml")),
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
    """Whether the SuperLink and its door take connections."""
    config = folder.config
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    try:
        for address in (("127.0.0.1", config.control_port), (host, config.port)):
            socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True


def register_keys(folder: ServerFolder) -> None:
    """Make the SuperLink accept the keys in server.toml and no others.

    Flower does not tell which node has which key, so what was registered is noted here.
    """
    extra, noted = commands.server_environment(folder), folder.state / "nodes.json"
    known: dict[str, dict[str, str]] = {}
    if noted.exists() and folder.database.exists():
        known = json.loads(noted.read_text(encoding="utf-8"))
    sites = {name: key_of(line) for name, line in folder.config.sites.items()}
    for name in [name for name, entry in known.items() if sites.get(name) != entry["key"]]:
        answer = commands.call(commands.unregister(known[name]["node"]), extra)
        if not answer.get("success"):  # it stays noted, so that it is tried again
            message = answer.get("error-message", "")
            log.error("the former key of site %s could not be taken back: %s", name, message)
            continue
        del known[name]
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
    temporary = noted.with_name(noted.name + ".tmp")  # a kill leaves the old list or the new one
    temporary.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    temporary.replace(noted)


class Keys:
    """Keeps the registered keys those of server.toml, also when the file is edited."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        self.seen = folder.config_file.stat().st_mtime_ns  # when it was changed, at the last look
        self.done = 0  # and as it was registered

    def look(self) -> None:
        """Register what is new, once the file is as it was at the look before."""
        changed = self.folder.config_file.stat().st_mtime_ns
        settled, self.seen = changed == self.seen, changed
        if not settled or changed == self.done:
            return
        self.done = changed
        try:
            register_keys(self.folder)
        except FuelsError as error:
            log.error("the keys stay as they are: %s", error)


def stand_by(folder: ServerFolder) -> None:
    """As long as the SuperLink lives: register keys, then keep the current run going."""
    while not is_listening(folder):
        time.sleep(0.2)
    keys = Keys(folder)
    keys.look()
    (folder.state / "ready").write_text(str(os.getppid()))
    idle_since, taken_up = None, False
    while True:
        keys.look()
        state = Current(folder).read().get("state")
        if state not in ("running", "submitted") or is_busy(folder):
            idle_since, taken_up = None, False
        elif idle_since is None:
            idle_since = time.monotonic()
        # A run that has begun and is not at work was cut off; one just handed over needs a while.
        patience = GRACE if taken_up or state == "submitted" else 2 * LOOK
        if idle_since is not None and time.monotonic() - idle_since > patience:
            idle_since, taken_up = time.monotonic(), True
            log.info("the current run is not at work: it is taken up again")
            reason = submit(folder)
            if reason:
                log.error("the run could not be taken up: %s", reason)
        time.sleep(LOOK)


def main() -> None:
    end_with_parent()
    folder = ServerFolder(Path(sys.argv[1]))
    set_up_log(folder.state / "steward.log")
    commands.write_connection(folder)  # the folder may have come from elsewhere
    update_app(folder)  # or from an older version
    stand_by(folder)


if __name__ == "__main__":
    main()
