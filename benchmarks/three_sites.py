"""The README's accuracy figures from three sites in separate processes, and from one machine.

A server and three sites with a third of the clients each run on this machine, with TLS, one key per
site and masked sums. Their sums, forecasts and errors are compared with those of one process that
has all clients. Only in a federation, preset best has defences: here neither side has them, or both
with `--defence`.

    python benchmarks/three_sites.py FOLDER/milan_net_441cells_hourly.npz [--defence]

This takes 4 minutes on two cores. Ends with status 1 unless all sums and models are the same to the
last bit, and all forecasts to 1e-5 standard deviations.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fuels.config import DEFENCE_OF_BEST, PRESETS, Engine, Settings, merge
from fuels.experts.history import history_of
from fuels.experts.run_sums import (
    LIVE_MEAN,
    STATISTICS,
    Steps,
    live_words,
    statistics_words,
)
from fuels.experts.shared import SharedExperts
from fuels.federation.flower import runs
from fuels.federation.flower.demo import federation
from fuels.federation.flower.folders import Rules, ServerFolder
from fuels.federation.flower.provisioning import federation_record
from fuels.federation.flower.status import follow
from fuels.federation.flower.sum_keys import certify
from fuels.federation.flower.sum_server import FILE, SHORT
from fuels.federation.loop import Round
from fuels.runs.build import load_dataset
from fuels.runs.run import run
from fuels.runs.settings import resolve
from fuels.sharing.fixed_point import from_words
from fuels.sharing.sums import LocalSums
from fuels.storage.checkpoint import load_state
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder

SITES = ("north", "south", "east")
SAME = 1e-5  # standard deviations


class Log:
    def on_round(self, done: Round) -> None:
        print(f"round {done.number} of {done.of}", file=sys.stderr, flush=True)


def prepare(root: Path, clients: dict[str, list[str]]) -> None:
    """Consent to sums, the founder's roster, and every value counts, as in the README's figures."""
    for site in clients:
        file = root / "sites" / site / "site.toml"
        text = file.read_text().replace("[data]\n", '[data]\nimplausible = "keep"\n')
        for name in ("sums", "live_mean"):
            text = text.replace(f"\n{name} = false", f"\n{name} = true")
        file.write_text(text)
    certify(root, federation_record(root), {s: len(ids) for s, ids in clients.items()}, {})


def federated(
    root: Path, settings: Settings, source: str, clients: dict[str, list[str]]
) -> tuple[ServerFolder, str]:
    rules = Rules(deadline=3600.0, join=600.0, quorum=1.0)
    with federation(
        root, clients, source, [settings.method], rules, lambda path: prepare(path, clients)
    ) as (server, processes):
        number = runs.new_run(server, settings)
        runs.start(server)
        missing = follow(server, number, settings.training.rounds, Log(), processes.check)
    if missing:
        raise SystemExit(f"{', '.join(missing)} did not save the models")
    return server, number


def sums_of_one(settings: Settings, facts: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """The sums over all clients in this process, as numbers in the federation's order."""
    dataset = load_dataset(settings)
    history = SharedExperts(LocalSums()).with_live_mean(history_of(dataset), dataset.ids)
    steps, horizon = Steps.from_facts(facts["steps"]), resolve(settings).windows.horizon
    words = {
        LIVE_MEAN: live_words(history, steps, 1),
        STATISTICS: statistics_words(history, steps, horizon, facts["live"], 1),
    }
    return {name: from_words(found) for name, found in words.items()}


def errors(folder: RunFolder) -> pl.DataFrame:
    """client, time, and z-scored forecast and error of the test part."""
    models = load_models(folder.models)
    scale = pl.DataFrame({"client": models.ids, "mean": models.mean, "std": models.std})
    table = pl.read_parquet(folder.forecasts).join(scale, on="client").sort("client", "time")
    return table.select(
        "client",
        "time",
        forecast=(pl.col("forecast") - pl.col("mean")) / pl.col("std"),
        error=(pl.col("forecast") - pl.col("actual")) / pl.col("std"),
    )


def halves(table: pl.DataFrame) -> list[float]:
    """MSE in the first and second half of the test part."""
    times = table["time"].unique().sort()
    middle = times[(len(times) + 1) // 2]
    return [
        float((table.filter(part)["error"] ** 2).mean())  # type: ignore[arg-type, operator]
        for part in (pl.col("time") < middle, pl.col("time") >= middle)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--split", default="40/0/22")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--defence", action="store_true", help="with the defences of preset best")
    parser.add_argument("--keep", type=Path, help="keep all folders here")
    options = parser.parse_args()
    best = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    source = str(options.data.resolve())
    changes = {
        "data": {"source": source, "clients": options.clients, "implausible": "keep"},
        "windows": {"split": options.split},
        "training": {"rounds": options.rounds},
        "defence": asdict(DEFENCE_OF_BEST) if options.defence else {},
    }
    settings = merge(best, changes, "benchmark")
    ids = sorted(load_dataset(settings).ids)
    clients = {site: ids[i :: len(SITES)] for i, site in enumerate(SITES)}
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        began = time.monotonic()
        one = RunFolder(root / "one")
        run(settings, Engine(), one, plots=False)
        between = time.monotonic()
        server, number = federated(root / "fed", settings, source, clients)
        ended = time.monotonic()
        folders = [root / "fed/sites" / site / "runs" / number for site in SITES]
        arrays, facts = load_state(server.runs / number / FILE)
        carried = {name: arrays[SHORT[name]].reshape(-1) for name in facts["sets"]}
        here = sums_of_one(settings, facts)
        same = all(np.array_equal(carried.get(name), found) for name, found in here.items())
        own = [load_models(path / "models.safetensors") for path in folders]
        together = load_models(one.models)
        models = all(
            np.array_equal(values, together.take(part.ids).parts[name])
            for part in own
            for name, values in part.parts.items()
        )
        whole = errors(one)
        sites = pl.concat([errors(RunFolder(path)) for path in folders]).sort("client", "time")
    apart = np.abs((sites["forecast"] - whole["forecast"]).to_numpy())
    largest = float(np.nanmax(apart))
    print(f"sites with {', '.join(str(len(found)) for found in clients.values())} clients,"
          f" {options.rounds} rounds, defences {'on' if options.defence else 'off'}")  # fmt: skip
    sizes = ", ".join(f"{name} {values.size}" for name, values in carried.items())
    print(f"numbers in the sums: {sizes}; {'the same to the last bit' if same else 'DIFFERENT'}")
    print(f"models: {'the same to the last bit' if models else 'DIFFERENT'}")
    print(f"forecasts: {len(apart)}, largest difference {largest:.1e} standard deviations,"
          f" {np.mean(apart > SAME):.1%} above {SAME:g}")  # fmt: skip
    print("| | first half of the test part | second half | seconds |\n|---|---|---|---|")
    rows = {"one machine": (whole, between - began), "three sites": (sites, ended - between)}
    for name, (table, seconds) in rows.items():
        first, second = halves(table)
        print(f"| {name} | {first:.6f} | {second:.6f} | {seconds:.0f} |")
    sys.exit(not (same and models and largest <= SAME))


if __name__ == "__main__":
    main()
