"""A federation of real processes on loopback, with faults on demand.

What a site's process does wrong is written into the Flower app that the test submits, so the
package itself knows nothing of it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.federation.helpers import write_panel

from fuels.config import Settings
from fuels.federation.flower import launch
from fuels.federation.flower.demo import Processes, federation
from fuels.federation.flower.parties import Current, Rules, ServerFolder
from fuels.report.folder import RunFolder

FAULTY = '''
"""The client side, with planned faults."""
import json, os, time
from dataclasses import replace
from pathlib import Path
from flwr.app import Message
from flwr.clientapp import ClientApp
from fuels.federation.codec import decode, encode
from fuels.federation.flower import app_client
from fuels.federation.flower.records import pack, unpack

PLAN = Path({plan!r})
app = ClientApp()


def handle(message, context):
    site = Path(context.node_config["folder"]).name
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {{}}
    what = plan.get(f"{{message.metadata.message_type}} {{message.metadata.group_id}} {{site}}", "")
    if what == "die":
        os._exit(9)
    if what == "raise":
        raise RuntimeError("a planned fault")
    if what.startswith("sleep"):
        mark = PLAN.with_name(f"{{site}}.asleep")
        if not mark.exists():
            mark.write_text(str(os.getpid()))
            time.sleep(float(what.split()[1]))
    reply = app_client.handle(message, context)
    if what.startswith("claim"):
        envelope = decode(unpack(reply.content), 2**26)
        false = encode(replace(envelope, site=what.split()[1]))
        return Message(pack(false), reply_to=message)
    return reply


app.train()(handle)
app.evaluate()(handle)
app.query()(handle)
'''


class Cluster:
    """A running federation."""

    def __init__(self, root: Path, server: ServerFolder, processes: Processes) -> None:
        self.root, self.server, self.processes = root, server, processes
        self.plan_file = root / "plan.json"

    def plan(self, faults: Mapping[str, str]) -> None:
        """`train 3 north`: what goes wrong at that site in that round."""
        self.plan_file.write_text(json.dumps(faults))
        client = self.server.app / "fuels_app" / "client.py"
        client.write_text(FAULTY.format(plan=str(self.plan_file)))

    def submit(self, settings: Settings) -> str:
        run = launch.new_run(self.server, settings)
        launch.start(self.server)
        return run

    def state(self) -> str:
        return str(Current(self.server).read().get("state", ""))

    def history(self, run: str) -> list[dict[str, Any]]:
        return RunFolder(self.server.runs / run).history()

    def timings(self, run: str) -> list[dict[str, Any]]:
        lines = (self.server.runs / run / "timings.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def wait(self, what: Callable[[], bool], seconds: float, why: str) -> None:
        end = time.monotonic() + seconds
        while not what():
            if time.monotonic() > end:
                raise AssertionError(f"{why}: not within {seconds} s\n{self.logs()}")
            time.sleep(0.2)

    def finish(self, run: str, seconds: float) -> list[dict[str, Any]]:
        """Wait for the end of the run; its history."""
        over = ("finished", "failed", "stopped")
        self.wait(lambda: self.state() in over, seconds, f"run {run} did not end")
        current = Current(self.server).read()
        assert current["state"] == "finished", f"{current}\n{self.logs()}"
        return self.history(run)

    def site_run(self, site: str, run: str) -> Path:
        return self.root / "sites" / site / "runs" / run

    def supernode(self, site: str) -> int:
        return int((self.root / "sites" / site / "state" / "supernode.pid").read_text())

    def logs(self) -> str:
        files = sorted(self.root.glob("*/state/*.log")) + sorted(
            self.root.glob("sites/*/state/*.log")
        )
        return "\n".join(f"== {file}\n{file.read_text()[-2000:]}" for file in files)


def kill(*ids: int) -> None:
    """kill -9, by id."""
    for number in ids:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue


def children(parent: int) -> list[int]:
    """All processes below one, nearest first."""
    found: list[int] = []
    tasks = Path(f"/proc/{parent}/task/{parent}/children")
    if tasks.exists():
        for child in map(int, tasks.read_text().split()):
            found += [child, *children(child)]
    return found


@contextmanager
def cluster(
    root: Path,
    sites: Mapping[str, Sequence[str]],
    rules: Rules,
    methods: Sequence[str] = ("fuels",),
    source: str = "",
) -> Iterator[Cluster]:
    """Start a federation whose sites share one file, or the source given."""
    if not source:
        data = root.parent / f"{root.name}.csv"
        data.parent.mkdir(parents=True, exist_ok=True)
        write_panel(data, sorted(client for ids in sites.values() for client in ids))
        source = str(data)
    with federation(root, sites, source, methods, rules) as (server, processes):
        for file in root.glob("sites/*/site.toml"):
            text = file.read_text().replace("keep_copies = false", "keep_copies = true")
            file.write_text(text.replace("threads = 0", "threads = 1"))
        yield Cluster(root, server, processes)
