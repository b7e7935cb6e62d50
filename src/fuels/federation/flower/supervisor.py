"""Watches over a SuperLink: registers the sites' keys and resumes an interrupted run.

`fuels server start` runs it next to the SuperLink; it can also be a separate service. Flower keeps
registered keys and runs in its database, but does not continue a ServerApp that was killed. Whether
one is running shows in a lock that the system releases with the process.

Flower's list of keys is the only one: a copy would be wrong as soon as the database is lost or
restored from a backup. Flower keeps a revoked key for ever and never accepts it again.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fuels.errors import FuelsError
from fuels.federation.flower import commands
from fuels.federation.flower.commands import REVOKED, registered
from fuels.federation.flower.flower_app import update_app
from fuels.federation.flower.folders import ServerFolder, key_of, log, set_up_log
from fuels.federation.flower.processes import end_with_parent
from fuels.federation.flower.runs import (
    ACTIVE,
    Current,
    is_busy,
    is_listening,
    revoked,
    standing,
    submit,
)

LOOK = 1.0  # seconds between two looks
AGAIN = 30.0  # seconds before what failed with the keys is tried again
GRACE = 60.0  # seconds a submitted run has to begin
TRIES = 5  # times that a run is taken up without a round that ends


def register_keys(folder: ServerFolder) -> bool:
    """Make the SuperLink accept the keys in server.toml and no others.

    Returns whether all was done that can be done; what Flower failed at may be tried again.
    """
    done = True
    sites = {name: key_of(line) for name, line in folder.config.sites.items()}
    nodes = registered(folder)
    for key, node in nodes.items():
        if key in sites.values() or node.status == REVOKED:
            continue
        answer = commands.call(commands.unregister(node.number), folder)
        if answer.get("success"):
            log.info("the key of node %s, not in server.toml, is taken back", node.number)
        else:
            message = answer.get("error-message", "")
            log.error("the key of node %s could not be taken back: %s", node.number, message)
            done = False
    folder.keys.mkdir(exist_ok=True)
    for name, key in sorted(sites.items()):
        if key not in nodes:
            done &= _register(folder, name, key)
        elif nodes[key].status == REVOKED:
            log.error("%s", revoked(name))
    return done


def _register(folder: ServerFolder, name: str, key: str) -> bool:
    file = folder.keys / f"{name}.pub"
    file.write_text(key + "\n", encoding="ascii")
    answer = commands.call(commands.register(file, name), folder)
    if answer.get("success"):
        log.info("the key of site %s is registered", name)
        return True
    message = answer.get("error-message", "")
    log.error("the key of site %s could not be registered: %s", name, message)
    return False


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


def supervise(folder: ServerFolder) -> None:
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
    set_up_log(folder.state / "supervisor.log")
    try:
        commands.write_connection(folder)  # the folder may have come from elsewhere
        update_app(folder)  # or from an older version
        supervise(folder)
    except (FuelsError, OSError) as error:
        log.error("the supervisor cannot continue: %s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
