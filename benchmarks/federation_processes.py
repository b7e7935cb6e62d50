"""Memory of the processes of a federation, time of a round with little training, and of `stop`.

A server and three sites with two clients each run on this machine with a model of width 8. Memory
is the proportional set size (PSS): pages that processes share count once. Processor time includes
that of child processes; seconds depend on what else the machine does. A second run is then stopped
after two rounds: seconds of the command, and until its process has ended. Linux only.

    python benchmarks/federation_processes.py [--rounds 12] [--sites 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fuels.config import Settings, merge
from fuels.federation.flower import runs
from fuels.federation.flower.demo import consent_to_all, demo_clients, federation
from fuels.federation.flower.folders import Rules, ServerFolder
from fuels.federation.flower.processes import Processes, descendants
from fuels.federation.flower.status import follow
from fuels.federation.loop import Round
from fuels.runs.settings import ResolvedSettings, resolve
from fuels.storage.run_folder import read_lines

WARM = 3  # rounds before the measurement: data are read and kernels loaded
PARTS = ("superlink", "superexec", "serverapp", "clientapp", "supernode", "gateway", "supervisor",
         "worker", "processes")  # fmt: skip


def memory(process: int) -> float:
    """Its PSS in MB."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def name_of(process: int) -> str:
    words = Path(f"/proc/{process}/cmdline").read_text()
    return next((part for part in PARTS if part in words), "other")


def processor(process: int) -> float:
    """Seconds of processor time of a process and its ended children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def everything(top: int) -> list[int]:
    return [process for process in (top, *descendants(top)) if Path(f"/proc/{process}").exists()]


class Watch:
    """Measures from one round to another."""

    def __init__(self, processes: Processes, last: int) -> None:
        self.processes, self.last = processes, last
        self.begun = 0.0
        self.spent: dict[str, float] = {}

    def on_round(self, done: Round) -> None:
        if done.number == WARM:
            self.begun, self.spent = time.monotonic(), self._spent()
        if done.number != self.last:
            return
        rounds, spent = self.last - WARM, self._spent()
        load = os.getloadavg()[0]
        each = (time.monotonic() - self.begun) / rounds
        print(f"a round takes {each:.1f} s at a load of {load:.0f}; processor time:")
        for party in spent:
            print(f"  {party}: {(spent[party] - self.spent[party]) / rounds:.2f} s")
        print("memory in MB:")
        for party, process in self.processes.running.items():
            parts = {name_of(each): memory(each) for each in everything(process.pid)}
            shown = ", ".join(f"{name} {size:.0f}" for name, size in parts.items())
            print(f"  {party}: {sum(parts.values()):.0f} ({shown})")

    def _spent(self) -> dict[str, float]:
        return {
            party: sum(processor(each) for each in everything(process.pid))
            for party, process in self.processes.running.items()
        }


def stop(server: ServerFolder, settings: ResolvedSettings) -> None:
    """Start a run, and stop it after two rounds."""
    run = runs.new_run(server, settings)
    runs.start(server)
    while len(read_lines(server.runs / run / "metrics.jsonl")) < 2:
        time.sleep(0.2)
    begun = time.monotonic()
    command = [str(Path(sys.executable).with_name("fuels")), "federation", "stop", str(server.path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    answered = time.monotonic() - begun
    while runs.is_busy(server):
        time.sleep(0.2)
    ended = time.monotonic() - begun
    print(f"fuels federation stop takes {answered:.1f} s; the run has ended after {ended:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--sites", type=int, default=3)
    given = parser.parse_args()
    changes = {"model": {"hidden": 8}, "training": {"rounds": given.rounds}}
    settings = resolve(merge(Settings(), changes, "benchmark"))
    clients = demo_clients(settings, given.sites, each=2)
    rules = Rules(deadline=300.0, join=300.0, quorum=1.0)
    source, methods = settings.data.source, [settings.method]
    with (
        tempfile.TemporaryDirectory() as path,
        federation(Path(path) / "fed", clients, source, methods, rules, consent_to_all) as found,
    ):
        server, processes = found
        run = runs.new_run(server, settings)
        runs.start(server)
        watch = Watch(processes, given.rounds - 1)
        follow(server, run, given.rounds, watch, processes.check)
        many = merge(Settings(), {**changes, "training": {"rounds": 1000}}, "benchmark")
        stop(server, resolve(many))


if __name__ == "__main__":
    main()
