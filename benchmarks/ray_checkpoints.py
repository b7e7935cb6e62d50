"""What reaches the driver in a round of FUELS on Ray, with checkpoints, in bytes of arrays.

Written: every actor writes the state of its clients to the run folder. Fetched: the driver fetches
the states and writes them, as where the actors do not see its disk.

    python benchmarks/ray_checkpoints.py [--clients 1000] [--sites 4] [--hidden 8] [--days 8]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fuels.config import Engine, Settings, merge
from fuels.data.synthetic import synthesise
from fuels.federation.ray import RayTransport
from fuels.runs.build import build
from fuels.storage.run_folder import RunFolder


class Counted:
    """Ray, which counts the bytes of the arrays that `get` returns."""

    def __init__(self, ray: Any) -> None:
        self.ray, self.bytes = ray, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ray, name)

    def get(self, references: Any) -> Any:
        found = self.ray.get(references)
        self.bytes += sum(array.nbytes for array in arrays(found))
        return found


def arrays(found: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(found, np.ndarray):
        yield found
    elif isinstance(found, dict | list | tuple):
        for each in found.values() if isinstance(found, dict) else found:
            yield from arrays(each)
    elif hasattr(found, "__dataclass_fields__"):
        yield from arrays(vars(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("clients", 1000), ("sites", 4), ("hidden", 8), ("days", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    panel = synthesise("net", clients=given.clients, days=given.days + 4)
    changes = {
        "windows": {"split": f"{given.days}/2/2"},
        "model": {"hidden": given.hidden},
        "training": {"rounds": 1},
    }
    engine = Engine(threads=given.sites, transport="ray", sites=given.sites)
    print(f"{given.clients} clients in {given.sites} actors, hidden {given.hidden}")
    with (
        tempfile.TemporaryDirectory() as path,
        build(merge(Settings(), changes, "benchmark"), engine, panel) as job,
    ):
        sites, folder = job.sites, RunFolder(Path(path))
        assert isinstance(sites, RayTransport)
        counted = sites._ray = Counted(sites._ray)
        for number, (how, apart) in enumerate((("fetched", True), ("written", False)), start=1):
            sites._apart = apart
            job.loop.training = replace(job.loop.training, rounds=number)
            counted.bytes, begun = 0, time.perf_counter()
            job.loop.run([folder], saver=folder)
            whole = time.perf_counter() - begun
            print(f"{how}: {counted.bytes:,} bytes to the driver, round of {whole:.1f} s")


if __name__ == "__main__":
    main()
