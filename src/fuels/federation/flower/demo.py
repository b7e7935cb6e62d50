"""A whole federation on this machine: TLS, keys, real processes, embedded data.

It uses only what operators use, listens only on 127.0.0.1, and stops every process that it started.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuels.config import Engine, Settings, merge
from fuels.data.loading import load_panel
from fuels.errors import FuelsError
from fuels.federation.flower import commands, runs
from fuels.federation.flower.folders import Rules, ServerFolder, SiteFolder
from fuels.federation.flower.processes import Processes
from fuels.federation.flower.provisioning import federation_record, provision
from fuels.federation.flower.status import follow, live_facts
from fuels.federation.flower.sum_keys import certify
from fuels.federation.loop import Watcher
from fuels.forecasting.saved_run import SavedRun
from fuels.methods.registry import find_method
from fuels.runs.build import build, kept_parameters
from fuels.runs.settings import ResolvedSettings, resolve
from fuels.sharing.masks import LEAST_SITES
from fuels.storage.run_folder import RunFolder

CLIENTS = 4  # of each site
PATIENCE = 90.0  # seconds to wait for the server to answer


@contextmanager
def federation(
    root: Path,
    sites: Mapping[str, Sequence[str]],
    source: str,
    methods: Sequence[str],
    rules: Rules,
    prepare: Callable[[Path], None] = lambda root: None,
) -> Iterator[tuple[ServerFolder, Processes]]:
    """Create and start a federation in `root`: each site has some clients of one data source.

    `prepare` may change the folders before anything is started.
    """
    provision(
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
        for site in sites:  # by now the keys are registered at the server
            processes.start(site, ["site", str(root / "sites" / site)])
        yield server, processes
    finally:
        processes.stop()


def wait_for(server: ServerFolder, processes: Processes) -> None:
    """Wait until the server answers and the keys are registered."""
    end = time.monotonic() + PATIENCE
    while not (server.state / "ready").exists():
        processes.check()
        if time.monotonic() > end:
            raise FuelsError(f"the server did not start within {PATIENCE:g} s")
        time.sleep(0.2)


def demo_settings(method: str, rounds: int, sites: int) -> ResolvedSettings:
    """From three sites on, with experts that use masked sums, and masked uploads if possible."""
    changes: dict[str, Any] = {"method": method, "training": {"rounds": rounds}}
    if sites >= LEAST_SITES:
        changes |= {"mixture": {"on": True}, "sharing": {"statistics": True, "live_mean": True}}
        changes["privacy"] = {"masked": find_method(method).only_mean}
    return resolve(merge(Settings(), changes, "demo"))


def consent_to_all(root: Path) -> None:
    """The data are embedded and all sites belong to one owner: FedDA and sums may run too."""
    for file in root.glob("sites/*/site.toml"):
        text = file.read_text(encoding="utf-8")
        for name in ("raw_derived", "sums", "live_mean"):
            text = text.replace(f"\n{name} = false", f"\n{name} = true")
        file.write_text(text, encoding="utf-8")
    numbers = {file.parent.name: CLIENTS for file in root.glob("sites/*/site.toml")}
    certify(root, federation_record(root), numbers, {})


def demo_clients(settings: Settings, sites: int, each: int) -> dict[str, list[str]]:
    """The first clients of the embedded data, assigned to the sites in turn."""
    ids = sorted(load_panel(settings).ids)[: sites * each]
    if len(ids) < sites * each:
        raise FuelsError(f"--sites {sites}: the embedded data have only {len(ids)} clients")
    return {f"site-{i + 1}": ids[i::sites] for i in range(sites)}


def run_demo(root: Path, settings: Settings, sites: int, watcher: Watcher) -> dict[str, Any]:
    """Train in this process, then in a federation; returns the errors of both, and the seconds.

    In this order because otherwise, on a new machine, all sites would compile the kernels at once.
    """
    began = time.monotonic()
    clients = demo_clients(settings, sites, each=CLIENTS)
    local = local_errors(settings, [client for ids in clients.values() for client in ids])
    source = settings.data.source
    rules = Rules(deadline=120.0, join=90.0, quorum=1.0)
    methods = [settings.method]
    with federation(root, clients, source, methods, rules, consent_to_all) as (server, processes):
        run = runs.new_run(server, settings)
        runs.start(server)
        missing = follow(server, run, settings.training.rounds, watcher, processes.check)
        if missing:
            raise FuelsError(f"{', '.join(missing)} did not save the models; see the sites' logs")
        live = live_step(server, run, root, clients) if settings.sharing.live_mean else {}
    history = RunFolder(server.runs / run).history()
    summaries = {
        site: json.loads((root / "sites" / site / "runs" / run / "summary.json").read_text())
        for site in clients
    }
    title = next(iter(next(iter(summaries.values()))["scores"]))
    test = sum(s["scores"][title]["mse"] * len(clients[site]) for site, s in summaries.items())
    total = sum(len(ids) for ids in clients.values())
    summary = json.loads(RunFolder(server.runs / run).summary.read_text(encoding="utf-8"))
    return {
        "val_mse": history[-1]["val_mse"],
        "test_mse": test / total,
        **local,
        **{name: summary[name] for name in ("sums", "masked") if name in summary},
        **({"live": live} if live else {}),
        "seconds": round(time.monotonic() - began, 1),
    }


def live_step(server: ServerFolder, run: str, root: Path, sites: Iterable[str]) -> dict[str, Any]:
    """One step of the run's live series: the values of a day ago arrive again at every site."""
    runs.start_live(server)
    for site in sites:
        folder = root / "sites" / site / "runs" / run
        memory = SavedRun.load(folder).memory()
        known = memory.panel
        again = replace(
            known,
            values=known.values[-memory.models.period :][:1],
            start=known.times[-1] + known.step,
        )
        memory.add(again)
        memory.store()
    _, notes = SavedRun.load(folder).forecast(wait=PATIENCE)
    found = live_facts(server, run)
    if not found.get("last"):
        reasons = "; ".join([*notes, *(each["reason"] for each in found.get("skipped", []))])
        raise FuelsError(f"the live series has no sum: {reasons or 'see the logs'}")
    last: dict[str, Any] = found["last"]
    return last


def local_errors(settings: Settings, ids: Sequence[str]) -> dict[str, float]:
    """The errors of the same training on the local engine."""
    from fuels.runs.run import evaluate_job

    here = {"data": {"ids": sorted(ids)}, "privacy": {"masked": False}}
    with build(merge(settings, here, "demo"), Engine()) as job:
        job.loop.run()
        models = kept_parameters(job, job.loop.final_download())
        result = evaluate_job(job, models).scores[job.method.title].means()
    return {
        "local_val_mse": float(job.loop.val_mse.mean()),
        "local_test_mse": float(result["mse"]),
    }
