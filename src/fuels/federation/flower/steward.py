"""Stands by a SuperLink: makes the sites' keys known and takes up a run that was cut off.

`fuels server start` runs it beside the SuperLink; it can be a service of its own too.
Flower keeps registered keys and runs in its database but does not go on with a ServerApp that was
killed: whether one is at work shows in a lock that the system releases with the process.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from fuels.errors import FuelsError
from fuels.federation.flower import commands
from fuels.federation.flower.bundle import update_app
from fuels.federation.flower.lifeline import end_with_parent
from fuels.federation.flower.parties import Current, ServerFolder, log, set_up_log
from fuels.federation.flower.registry import register_keys

ACTIVE = ("running", "submitted")  # states of a run that is not over
LOOK = 1.0  # seconds between two looks
AGAIN = 30.0  # seconds before what failed with the keys is tried again
GRACE = 60.0  # seconds a submitted run has to begin
TRIES = 5  # times that a run is taken up without a round that ends


def submit(folder: ServerFolder) -> str:
    """Hand the current run to Flower; returns "" or the reason why it was not taken."""
    current = Current(folder)
    run = current.read()["run"]
    update_app(folder)
    config = str(folder.runs / run / "flower.toml")
    answer = commands.call(commands.start_run(folder, config), folder)
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


def standing(folder: ServerFolder) -> dict[str, Any]:
    """The current run as it stands; one whose folder is gone cannot go on, and that is noted."""
    current = Current(folder)
    found = current.read()
    if found.get("state") not in ACTIVE:
        return found
    missing = not (folder.runs / str(found["run"]) / "flower.toml").is_file()
    if missing and not is_busy(folder):
        current.write(state="failed", reason=gone(folder, str(found["run"])))
    return current.read()


def gone(folder: ServerFolder, run: str) -> str:
    return f"{folder.runs / run} is not there, so this run cannot go on: start a new one"


def is_listening(folder: ServerFolder) -> bool:
    """Whether the SuperLink and its door take connections."""
    config = folder.config
    host = "127.0.0.1" if config.host == "0.0.0.0" else config.host
    try:
        for address in (("127.0.0.1", config.control_port), (host, config.port)):
            socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True


class Keys:
    """Keeps the registered keys those of server.toml, also when the file is edited."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        self.seen = self._changed()  # when the file was changed, at the last look
        self.done = 0  # and as it was registered
        self.failed, self.again = 0, 0.0  # as it could not be, and when that is tried again

    def look(self) -> None:
        """Register what is new, once the file is as it was at the look before."""
        changed = self._changed()
        settled, self.seen = changed == self.seen, changed
        if not changed or not settled or changed == self.done:
            return
        if changed == self.failed and time.monotonic() < self.again:
            return
        try:
            done = register_keys(self.folder)
        except FuelsError as error:
            log.error("the keys stay as they are: %s", error)
            done = False
        if done:
            self.done = changed
        else:
            self.failed, self.again = changed, time.monotonic() + AGAIN

    def _changed(self) -> int:
        """When the file was changed; 0 while an editor has it out of the way."""
        try:
            return self.folder.config_file.stat().st_mtime_ns
        except OSError:
            return 0


class Tries:
    """How often the current run was taken up since its last round: not for ever."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        self.count, self.mark = 0, ("", 0)

    def are_over(self) -> bool:
        """Whether it was too often; then the run has failed, and its note says so."""
        run = str(Current(self.folder).read()["run"])
        metrics = self.folder.runs / run / "metrics.jsonl"  # it grows by a line a round
        mark = (run, metrics.stat().st_size if metrics.is_file() else 0)
        if mark != self.mark:
            self.count, self.mark = 0, mark
        if self.count < TRIES:
            return False
        reason = (
            f"it was taken up {TRIES} times and ended without a round each time:"
            f" {self.folder.state / 'server.log'} may say why; fuels federation run --resume tries"
            " again"
        )
        log.error("run %s: %s", run, reason)
        self.count = 0  # for whoever resumes it
        Current(self.folder).write(state="failed", reason=reason)
        return True


def stand_by(folder: ServerFolder) -> None:
    """As long as the SuperLink lives: register keys, then keep the current run going."""
    while not is_listening(folder):
        time.sleep(0.2)
    keys = Keys(folder)
    keys.look()
    (folder.state / "ready").write_text(str(os.getppid()))
    idle_since, taken_up, tries = None, False, Tries(folder)
    while True:
        keys.look()
        state = standing(folder).get("state")
        if state not in ACTIVE or is_busy(folder):
            idle_since, taken_up = None, False
        elif idle_since is None:
            idle_since = time.monotonic()
        # A run that has begun and is not at work was cut off; one just handed over needs a while.
        patience = GRACE if taken_up or state == "submitted" else 2 * LOOK
        waited = idle_since is not None and time.monotonic() - idle_since > patience
        if waited and not tries.are_over():
            idle_since, taken_up = time.monotonic(), True
            log.info("the current run is not at work: it is taken up again")
            reason = submit(folder)
            if reason:
                log.error("the run could not be taken up: %s", reason)
            else:
                tries.count += 1
        time.sleep(LOOK)


def main() -> None:
    end_with_parent()
    folder = ServerFolder(Path(sys.argv[1]))
    set_up_log(folder.state / "steward.log")
    try:
        commands.write_connection(folder)  # the folder may have come from elsewhere
        update_app(folder)  # or from an older version
        stand_by(folder)
    except (FuelsError, OSError) as error:
        log.error("the steward cannot go on: %s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
