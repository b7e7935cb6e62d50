"""A whole federation on this machine: TLS, keys, real processes, embedded data.

It uses nothing but what operators use, listens on 127.0.0.1 alone, and ends every process that it
started.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fuels.build import build, load_panel
from fuels.config import Engine, Settings, merge
from fuels.errors import FuelsError
from fuels.federation.flower import commands, launch
from fuels.federation.flower.follow import follow
from fuels.federation.flower.found import found
from fuels.federation.flower.parties import Rules, ServerFolder, SiteFolder
from fuels.federation.loop import Watcher
from fuels.report.folder import RunFolder

PATIENCE = 90.0  # seconds until the server answers
LAUNCH = [sys.executable, "-m", "fuels.federation.flower.launch"]


class Processes:
    """The processes of a federation on this machine, each with its own log file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([*LAUNCH, *arguments], stdout=log, stderr=log)
        self.running[name] = process
        return process

    def check(self) -> None:
        """Raise if one has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise FuelsError(f"{name} ended; {self.root / f'{name}.log'} says why")

    def stop(self) -> None:
        """End them all, the sites before the server, by their ids."""
        for process in reversed(self.running.values()):
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def federation(
    root: Path,
    sites: Mapping[str, Sequence[str]],
    source: str,
    methods: Sequence[str],
    rules: Rules,
    prepare: Callable[[Path], None] = lambda root: None,
) -> Iterator[tuple[ServerFolder, Processes]]:
    """Found and start a federation in `root`: each site has some clients of one data source.

    `prepare` may change the folders before anything is started.
    """
    found(
        root,
        "demo",
        list(sites),
        "127.0.0.1",
        commands.free_port(),
        control_port=commands.free_port(),
        methods=methods,
        rules=rules,
    )
    for site, ids in sites.items():
        file = SiteFolder(root / "sites" / site).config_file
        data = f"[data]\nsource = {json.dumps(source)}\nids = {json.dumps(list(ids))}"
        text = file.read_text(encoding="utf-8").replace('[data]\nsource = ""', data)
        file.write_text(text, encoding="utf-8")
    prepare(root)
    processes, server = Processes(root), ServerFolder(root)
    try:
        processes.start("server", ["server", str(server.path)])
        wait_for(server, processes)
        for site in sites:  # the server knows the keys now
            processes.start(site, ["site", str(root / "sites" / site)])
        yield server, processes
    finally:
        processes.stop()


def wait_for(server: ServerFolder, processes: Processes) -> None:
    """Until the server answers and knows the keys."""
    end = time.monotonic() + PATIENCE
    while not (server.state / "ready").exists():
        processes.check()
        if time.monotonic() > end:
            raise FuelsError(f"the server did not start within {PATIENCE:g} s")
        time.sleep(0.2)


def demo_settings(method: str, rounds: int) -> Settings:
    return merge(Settings(), {"method": method, "training": {"rounds": rounds}}, "demo")


def demo_clients(settings: Settings, sites: int, each: int) -> dict[str, list[str]]:
    """The first clients of the embedded data, dealt out to the sites in turn."""
    ids = sorted(load_panel(settings).ids)[: sites * each]
    if len(ids) < sites * each:
        raise FuelsError(f"--sites {sites}: the embedded data have only {len(ids)} clients")
    return {f"site-{i + 1}": ids[i::sites] for i in range(sites)}


def run_demo(root: Path, settings: Settings, sites: int, watcher: Watcher) -> dict[str, float]:
    """Train across processes, then in this one; returns the errors of both."""
    clients = demo_clients(settings, sites, each=4)
    source = settings.data.source
    rules = Rules(deadline=120.0, join=90.0, quorum=1.0)
    with federation(root, clients, source, [settings.method], rules) as (server, processes):
        run = launch.new_run(server, settings)
        launch.start(server)
        follow(server, run, settings.training.rounds, watcher, processes.check)
    history = RunFolder(server.runs / run).history()
    summaries = {
        site: json.loads((root / "sites" / site / "runs" / run / "summary.json").read_text())
        for site in clients
    }
    title = next(iter(next(iter(summaries.values()))["scores"]))
    test = sum(s["scores"][title]["mse"] * len(clients[site]) for site, s in summaries.items())
    total = sum(len(ids) for ids in clients.values())
    return {
        "val_mse": history[-1]["val_mse"],
        "test_mse": test / total,
        **local_errors(settings, [client for ids in clients.values() for client in ids]),
    }


def local_errors(settings: Settings, ids: Sequence[str]) -> dict[str, float]:
    """The same training by the engine of one machine."""
    from fuels.scores import score

    job = build(merge(settings, {"data": {"ids": sorted(ids)}}, "demo"), Engine())
    job.loop.run()
    models = job.site.models(job.loop.final_download())
    result = score(job.dataset, "test", job.site.forecast(models, "test")).means()
    return {
        "local_val_mse": float(job.loop.val_mse.mean()),
        "local_test_mse": float(result["mse"]),
    }
