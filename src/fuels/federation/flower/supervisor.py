"""Supervises a SuperLink: registers the sites' keys, starts runs and resumes interrupted ones.

`fuels server start` runs it next to the SuperLink; it can also be a separate service. Flower keeps
registered keys and runs in its database, but does not continue a ServerApp that was killed. A
running one holds a lock, which the system releases when the process ends.

Flower's list of keys is not copied: a copy would be wrong as soon as the database is lost or
restored from a backup. Flower keeps a revoked key forever and never accepts it again.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

from fuels.errors import FuelsError
from fuels.federation.audit import fingerprint
from fuels.federation.flower import commands, database, live_record, metrics
from fuels.federation.flower.child_process import end_with_parent
from fuels.federation.flower.commands import REVOKED, registered
from fuels.federation.flower.flower_app import update_app
from fuels.federation.flower.folders import ServerFolder, key_of, log, set_up_log
from fuels.federation.flower.launcher import Launcher
from fuels.federation.flower.records import audit
from fuels.federation.flower.runs import (
    ACTIVE,
    Current,
    current_run,
    is_busy,
    is_listening,
    revoked,
    submit,
)
from fuels.federation.flower.site_keys import read_revoked, write_revoked

LOOK = 1.0  # seconds between two checks
AGAIN = 30.0  # seconds before a failed change of the keys is tried again
GRACE = 60.0  # seconds a submitted run has to start
COMPACT = 600.0  # seconds between two looks at the size of Flower's database
TRIES = 5  # times that a run is resumed without finishing a round


def register_keys(folder: ServerFolder) -> bool:
    """Make the SuperLink accept the keys in server.toml and no others.

    Returns whether all changes were made; those that Flower refused can be tried again.
    """
    done = True
    sites = {name: key_of(line) for name, line in folder.config.sites.items()}
    nodes = registered(folder)
    names = registered_names(folder)
    known = read_revoked(folder.revoked)
    gone = [key for key in nodes if key not in sites.values() or nodes[key].status == REVOKED]
    former = {key: site for key, site in known.items() if key not in sites.values()}
    # Before anything is revoked: from then on the gateway says so to the sites.
    here = {key: known.get(key) or names.get(key, "of this key") for key in gone}
    write_revoked(folder.revoked, former | here)
    for key, node in nodes.items():
        if key in sites.values() or node.status == REVOKED:
            continue
        answer = commands.call(commands.unregister(node.number), folder)
        if answer.get("success"):
            log.info("the key of site %s is not in server.toml: revoked", here[key])
            audit(folder).add("key revoked", site=here[key], key=fingerprint(key))
        else:
            message = answer.get("error-message", "")
            log.error("the key of site %s could not be revoked: %s", here[key], message)
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
        audit(folder).add("key registered", site=name, key=fingerprint(key))
        return True
    message = answer.get("error-message", "")
    log.error("the key of site %s could not be registered: %s", name, message)
    return False


def registered_names(folder: ServerFolder) -> dict[str, str]:
    """The site of each key that was registered last, by key."""
    files = folder.keys.glob("*.pub") if folder.keys.is_dir() else ()
    return {key_of(file.read_text(encoding="ascii")): file.stem for file in files}


class Keys:
    """Keeps the registered keys in step with server.toml, including later edits of the file."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        # Modification times of the file: at the last check, when its keys were registered, and when
        # that failed; `again` is the time of the next attempt.
        self.seen = self._changed()
        self.done = 0
        self.failed, self.again = 0, 0.0

    def look(self) -> None:
        """Register new keys, once the file has not changed between two checks."""
        changed = self._changed()
        settled, self.seen = changed == self.seen, changed
        if not changed or not settled or changed == self.done:
            return
        if changed == self.failed and time.monotonic() < self.again:
            return
        try:
            done = register_keys(self.folder)
        except FuelsError as error:
            log.error("the registered keys are unchanged: %s", error)
            done = False
        if done:
            self.done = changed
        else:
            self.failed, self.again = changed, time.monotonic() + AGAIN

    def _changed(self) -> int:
        """When the file was last modified; 0 while an editor is replacing it."""
        try:
            return self.folder.config_file.stat().st_mtime_ns
        except OSError:
            return 0


class Tries:
    """Counts how often the current run was resumed since its last round, to limit it."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        self.count = 0
        self.mark: tuple[object, ...] = ()

    def give_up(self) -> bool:
        """Mark the run as failed if the limit is reached; returns whether it was."""
        run = str(Current(self.folder).read()["run"])
        # One grows by a line per round, the other is replaced at each step of a live series.
        files = [self.folder.runs / run / name for name in ("metrics.jsonl", live_record.FILE)]
        mark = (run, *(file.stat().st_mtime_ns if file.is_file() else 0 for file in files))
        if mark != self.mark:
            self.count, self.mark = 0, mark
        if self.count < TRIES:
            return False
        reason = (
            f"it was resumed {TRIES} times and ended each time without finishing a round; see"
            f" {self.folder.state / 'server.log'}, and try again with fuels federation run --resume"
        )
        log.error("run %s: %s", run, reason)
        self.count = 0  # for the next --resume
        Current(self.folder).write(state="failed", reason=reason)
        return True


def supervise(folder: ServerFolder) -> None:
    """While the SuperLink is running: register keys and keep the current run going."""
    while not is_listening(folder):
        time.sleep(0.2)
    keys = Keys(folder)
    keys.look()
    (folder.state / "ready").write_text(str(os.getppid()))
    idle_since, resumed, tries = None, False, Tries(folder)
    compact_at = time.monotonic() + COMPACT
    while True:
        keys.look()
        state = current_run(folder).get("state")
        if state not in ACTIVE and time.monotonic() > compact_at:
            database.shrink(folder.database)
            compact_at = time.monotonic() + COMPACT
        if state not in ACTIVE or is_busy(folder):
            idle_since, resumed = None, False
        elif idle_since is None:
            idle_since = time.monotonic()
        # A run that started and is not running was interrupted; a submitted one needs some time.
        patience = GRACE if resumed or state == "submitted" else 2 * LOOK
        waited = idle_since is not None and time.monotonic() - idle_since > patience
        if waited and not tries.give_up():
            idle_since, resumed = time.monotonic(), True
            log.info("the current run was interrupted: resuming it")
            reason = submit(folder)
            if reason:
                log.error("the run could not be resumed: %s", reason)
            else:
                tries.count += 1
        time.sleep(LOOK)


def main() -> None:
    end_with_parent()
    folder = ServerFolder(Path(sys.argv[1]))
    set_up_log(folder.state / "supervisor.log")
    try:
        commands.write_connection(folder)  # the folder may have been moved
        update_app(folder)  # or written by an older version
        if port := folder.config.metrics_port:
            text = partial(metrics.server_metrics, folder)
            metrics.start(port, text, partial(metrics.server_health, folder), folder.config_file)
        Launcher(folder).start()
        supervise(folder)
    except (FuelsError, OSError) as error:
        log.error("the supervisor cannot continue: %s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
