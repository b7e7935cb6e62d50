"""Time and bytes of the steps of a live series, from the newest values to the sums at all sites.

A server and its sites run on this machine, each with its own processes, TLS and keys. Values of a
step are stored at every site, as fuels forecast does. From then on time is measured, until every
site has stored the sum. Bytes are those on the wire of one site, both ways, TLS and HTTP included.
The sites' runs are not trained: nothing here depends on their models.

    python benchmarks/live.py [--sites 4] [--clients 250] [--steps 20]
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.experts.ensemble import new_ensemble
from fuels.experts.history import history_of
from fuels.federation.flower import runs
from fuels.federation.flower.demo import federation
from fuels.federation.flower.flower_app import write_run_config
from fuels.federation.flower.folders import Rules, ServerFolder
from fuels.federation.flower.processes import Processes, descendants
from fuels.federation.flower.provisioning import federation_record
from fuels.federation.flower.runs import Current
from fuels.federation.flower.status import live_facts
from fuels.federation.flower.sum_keys import certify
from fuels.forecasting.memory import Memory
from fuels.runs.build import build, kept_parameters
from fuels.sharing.received import FILE, ReceivedMean
from fuels.storage.config_file import write_toml
from fuels.storage.models import PersonalModels, save_models
from fuels.storage.run_folder import RunFolder

DAYS, RUN = 18, "fuels-1"
PATIENCE = 120.0  # seconds that a step may take
IDLE = 30.0  # seconds of waiting that are measured


class Relay(threading.Thread):
    """Passes a site's connections on to the server and counts every byte."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.target = self.listener.getsockname()[1], target
        self.lock, self.bytes = threading.Lock(), 0
        self.start()

    def run(self) -> None:
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the server has ended
                near.close()
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=ends, daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                with self.lock:
                    self.bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()


class Sites:
    """Sites with a finished run each, and values to give to them."""

    def __init__(self, names: list[str], clients: int, steps: int) -> None:
        self.panel = replace(
            synthesise("net", clients=len(names) * clients, days=DAYS + -(-steps // 24), seed=0),
            coordinates=None,
        )
        self.ids = {
            name: self.panel.ids[i * clients : (i + 1) * clients] for i, name in enumerate(names)
        }
        self.known = DAYS * 24
        self.relay: Relay | None = None

    def prepare(self, root: Path) -> None:
        self.root, server = root, ServerFolder(root)
        certify(root, federation_record(root), {s: len(ids) for s, ids in self.ids.items()}, {})
        settings = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "benchmark")
        changes = {
            "data": {"source": "synthetic:net"},
            "windows": {"split": f"{DAYS - 3}/0/3"},
            "model": {"hidden": 8},
        }
        settings = merge(settings, changes, "benchmark")
        known = replace(self.panel, values=self.panel.values[: self.known])
        with build(settings, Engine(threads=1), known) as job:
            self.models = kept_parameters(job, job.loop.final_download())
            history, end, resolved = history_of(job.dataset), job.dataset.split.train, job.settings
        for site, ids in self.ids.items():
            rows = np.array([self.models.ids.index(client) for client in ids])
            folder = RunFolder(root / "sites" / site / "runs" / RUN)
            folder.path.mkdir(parents=True)
            models = self.models.take(ids)
            save_models(folder.models, models)
            own = history.take(rows)
            new_ensemble(models, own, end, title="FUELS", sharing=resolved.sharing).save(
                folder.mixture
            )
            folder.remember(known.select(ids))
            write_toml(folder.config, settings, Engine())
            folder.summary.write_text("{}\n")
            config = root / "sites" / site / "site.toml"
            text = config.read_text().replace("live_mean = false", "live_mean = true")
            config.write_text(text.replace("threads = 0", "threads = 1"))
        address = server.config.address
        self.relay = Relay(server.config.port)  # of the last site
        config.write_text(config.read_text().replace(address, f"127.0.0.1:{self.relay.port}"))
        (server.runs / RUN).mkdir(parents=True)
        write_toml(server.runs / RUN / "config.toml", settings, Engine())
        write_run_config(server.runs / RUN / "flower.toml", RUN, resolved)
        (server.runs / RUN / "summary.json").write_text("{}\n")
        Current(server).write(run=RUN, state="finished", reason="", live=False)

    def give(self) -> None:
        """The values of the next step arrive at all sites."""
        for site, ids in self.ids.items():
            memory = self._memory(site, self.models.take(ids), ids)
            own = self.panel.select(ids)
            rows = slice(self.known, self.known + 1)
            memory.add(replace(own, values=own.values[rows], start=own.times[self.known]))
            memory.store()
        self.known += 1

    def _memory(self, site: str, models: PersonalModels, ids: tuple[str, ...]) -> Memory:
        folder = self.root / "sites" / site / "runs" / RUN
        found = Memory.load(folder, models)
        if found is not None:
            return found
        own: Panel = self.panel.select(ids)
        return Memory.begin(folder, models, replace(own, values=own.values[: self.known]))

    def wait(self) -> None:
        """Until every site has the sum of the newest step."""
        end = time.monotonic() + PATIENCE
        moment = self.panel.times[self.known - 1] + self.panel.standard_offset
        for site in self.ids:
            file = self.root / "sites" / site / "runs" / RUN / FILE
            seen = 0
            while True:
                changed = file.stat().st_mtime_ns if file.is_file() else 0
                if changed != seen and ReceivedMean.load(file).decided(moment):
                    break
                if time.monotonic() > end:
                    raise SystemExit(f"{site} has no sum of {moment} after {PATIENCE:g} s")
                seen = changed
                time.sleep(0.02)


def processor(processes: Processes) -> float:
    """Seconds of processor time of all processes."""
    total = 0.0
    for process in processes.running.values():
        for number in (process.pid, *descendants(process.pid)):
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:13])) / 100
    return total


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sites", type=int, default=4)
    options.add_argument("--clients", type=int, default=250, help="of each site")
    options.add_argument("--steps", type=int, default=20)
    chosen = options.parse_args()
    names = [f"site-{i + 1}" for i in range(chosen.sites)]
    sites = Sites(names, chosen.clients, chosen.steps + 2)
    root = Path(tempfile.mkdtemp()) / "fed"
    listed = {site: list(ids) for site, ids in sites.ids.items()}
    with federation(root, listed, "synthetic:net", ["fuels"], Rules(), sites.prepare) as parties:
        server, processes = parties
        runs.start_live(server)
        sites.wait()
        sites.give()  # workers load the run and the kernels
        sites.wait()
        took, worked = [], processor(processes)
        assert sites.relay is not None
        before = sites.relay.bytes
        for number in range(chosen.steps):
            time.sleep(1 + number % 4)  # at any time of a request that a site holds
            sites.give()
            begun = time.monotonic()
            sites.wait()
            took.append(time.monotonic() - begun)
            print(f"step {number + 1}: {took[-1]:.2f} s", flush=True)
        carried = (sites.relay.bytes - before) / chosen.steps
        worked = (processor(processes) - worked) / chosen.steps
        before, busy, begun = sites.relay.bytes, processor(processes), time.monotonic()
        time.sleep(IDLE)
        span = time.monotonic() - begun
        idle = (sites.relay.bytes - before) / span * 3600
        share = (processor(processes) - busy) / span
        found = live_facts(server, RUN)
    print(f"{chosen.sites} sites of {chosen.clients} clients, {chosen.steps} steps, all with a sum:"
          f" {found['counts'].get('skipped', 0) == 0}")  # fmt: skip
    print(f"median {statistics.median(took):.2f} s, worst {max(took):.2f} s")
    print(f"bytes of a site: {carried:,.0f} for a step and 2.5 s of waiting, of which messages"
          f" {found['bytes_per_site_and_step']:,}; {idle:,.0f} for an hour of waiting")  # fmt: skip
    print(f"processor time of all processes: {worked:.2f} s for a step and 2.5 s of waiting;"
          f" {100 * share:.1f} % of a core while waiting")  # fmt: skip


if __name__ == "__main__":
    main()
