"""Side by side with what people would use instead: AutoETS, MSTL, and LightGBM with mlforecast.

    make bench-peers DATA=FOLDER/milan_net_441cells_hourly.npz
    python benchmarks/peers.py FILE --python .venv-peers/bin/python [--clients 100] [--out FOLDER]

The same for everybody: 100 clients, training up to 10 December 2013 (the first 40 days), then
rolling origins on the 22 days after. At each origin a forecaster knows all values before it. One
hour ahead, an origin is every hour; a day ahead, an origin is every midnight, with all 24 hours of
the day forecast. AutoETS and MSTL go through each series again at each origin, and mlforecast
calibrates its intervals again, which takes long, so they get fewer (EVERY). No setting is chosen on
test days. Each contender runs in a process of its own with one thread, which gives seconds of
processor time and peak memory.

`--out` keeps what is finished (default: build/peers), one contender and distance at a time: a later
call computes only what is missing and prints the tables again. `--only NAME --horizons 1` computes
one of them, so a long comparison can be done in parts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import polars as pl

from fuels.config import Settings, merge
from fuels.data.files import writing
from fuels.data.loading import load_panel
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.evaluation.accuracy import accuracy, overall
from fuels.forecasting.table import long_frame
from fuels.runs.build import load_dataset

TRAIN, PARTS = 40, (11, 11)  # days; the last one may be incomplete
DAY = 24
OURS, WEEKLY = "fuels", "LightGBM-weekly"
TITLES = {
    OURS: "fuels, preset best",
    "AutoETS": "statsforecast AutoETS",
    "MSTL": "statsforecast MSTL",
    "LightGBM": "mlforecast, LightGBM, fitted once",
    WEEKLY: "mlforecast, LightGBM, fitted every week",
}
REFERENCES = ("last value", "one period ago", "one week ago")
# Steps from one origin to the next, if it is not every hour or every midnight.
EVERY = {
    ("AutoETS", 1): 5,
    ("MSTL", 1): 47,
    ("MSTL", DAY): 3 * DAY,
    ("LightGBM", 1): 7,
    (WEEKLY, 1): 7,
}
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
WATCH = """
import json, os, sys
status, used = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)[1:]
cost = {"seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss / 1000}
print(json.dumps(cost))
sys.exit(bool(status))
"""


@dataclass(frozen=True)
class Cost:
    """What a contender took for one horizon."""

    seconds: float  # of processor time
    megabytes: float  # at its peak


@dataclass(frozen=True)
class Data:
    """What is forecast, and how errors are scaled."""

    panel: Panel  # the drawn clients
    spread: dict[str, float]  # standard deviation of the training part, by client
    path: Path  # the same values as a long table, for every contender

    def windows(self, horizon: int, step: int) -> int:
        """The number of origins from the end of training to the end of the (whole) test days."""
        last = self.panel.length if horizon == 1 else self.panel.length // DAY * DAY
        return (last - TRAIN * DAY - horizon) // step + 1


def read(source: Path, clients: int, folder: Path) -> Data:
    settings = merge(
        Settings(),
        {
            "data": {"source": str(source), "clients": clients},
            "windows": {"split": f"{TRAIN}/0/{sum(PARTS)}"},
        },
        "peers.py",
    )
    dataset = load_dataset(settings)
    panel, path = load_panel(settings).select(dataset.ids), folder / "panel.parquet"
    values = long_frame(panel)
    if not path.exists():
        with writing(path) as new:
            values.write_parquet(new)
    elif not pl.read_parquet(path).equals(values):
        raise FuelsError(f"{folder} has results for other data than {source}: give another --out")
    return Data(panel, dict(zip(dataset.ids, dataset.std.tolist(), strict=True)), path)


# -- contenders --------------------------------------------------------------------------------


def measured(command: list[str], log: Path) -> Cost:
    """Run a command with one thread.

    A small process starts it, because the peak memory of a child includes its parent's.
    """
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-S", "-c", WATCH, *command],
            env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        sys.exit(f"failed, see {log}: {' '.join(command)}")
    last = log.read_text(encoding="utf-8").splitlines()[-1]
    return Cost(**json.loads(last))


def run_ours(data: Data, horizon: int, out: Path) -> Cost:
    """`fuels backtest`: one training, experts that learn from each value as it arrives."""
    step, panel, work = horizon, data.panel, out.with_suffix("")
    source = data.path
    if horizon > 1:  # the last window ends with the data, at midnight
        source = data.path.with_name("whole-days.parquet")
        whole = panel.values[: panel.length // DAY * DAY]
        long_frame(replace(panel, values=whole)).write_parquet(source)
    shutil.rmtree(work, ignore_errors=True)
    words = f"--horizon {horizon} --step {step} --windows {data.windows(horizon, step)} --seed 0"
    main = [sys.executable, "-c", "from fuels.cli import main; main()", "backtest"]
    options = ["--data", str(source), *words.split(), "--threads", "1", "--out", str(work)]
    cost = measured([*main, *options], out.with_suffix(".log"))
    found = pl.read_parquet(work / "forecasts.parquet")
    found.rename(lambda name: name.replace("FUELS", OURS)).write_parquet(out)
    return cost


def run_rival(name: str, python: Path, data: Data, horizon: int, out: Path) -> Cost:
    step = EVERY.get((name, horizon), horizon)
    numbers = {"train": TRAIN * DAY, "horizon": horizon, "step": step}
    numbers["windows"] = data.windows(horizon, step)
    words = [word for key, value in numbers.items() for word in (f"--{key}", str(value))]
    script = str(Path(__file__).with_name("peers_rivals.py"))
    command = [str(python), script, name, "--data", str(data.path), *words, "--out", str(out)]
    return measured(command, out.with_suffix(".log"))


def cost_of(name: str, python: Path | None, data: Data, horizon: int, folder: Path) -> Cost | None:
    """Run a contender unless its results are there; None if that needs the other environment."""
    out = folder / f"{name}-{horizon}.parquet"
    record = out.with_suffix(".json")
    if record.exists():
        return Cost(**json.loads(record.read_text(encoding="utf-8")))
    if name != OURS and python is None:
        return None
    print(f"{name}, {horizon} ahead ...", file=sys.stderr, flush=True)
    if name == OURS:
        cost = run_ours(data, horizon, out)
    else:
        assert python is not None
        cost = run_rival(name, python, data, horizon, out)
    with writing(record) as new:
        new.write_text(json.dumps(asdict(cost)), encoding="utf-8")
    return cost


# -- the tables --------------------------------------------------------------------------------


def errors(table: pl.DataFrame, model: str, spread: dict[str, float]) -> dict[str, float]:
    """Means over the clients, in standard deviations of each client's training part."""
    columns = [name for name in table.columns if name == "y" or name.startswith(model)]
    unit = pl.col("unique_id").replace_strict(spread, return_dtype=pl.Float64)
    scaled = table.with_columns(pl.col(column) / unit for column in columns)
    [found] = overall(accuracy(scaled, [model], dict.fromkeys(spread, 1.0))).to_dicts()
    return found


def part(table: pl.DataFrame, data: Data, number: int) -> pl.DataFrame:
    """The forecasts for one part of the test days."""
    first = (TRAIN + sum(PARTS[:number])) * DAY
    last = min(first + PARTS[number] * DAY, data.panel.length) - 1
    begin, end = (data.panel.times[i].astype("datetime64[us]").item() for i in (first, last))
    return table.filter(pl.col("ds").is_between(begin, end))


def rows(data: Data, horizon: int, folder: Path, costs: dict[str, Cost]) -> list[list[str]]:
    found = []
    for name, cost in costs.items():
        table = pl.read_parquet(folder / f"{name}-{horizon}.parquet")
        table = table.with_columns(
            pl.col("ds").cast(pl.Datetime("us")), pl.col("unique_id").cast(str)
        )
        for model in (name, *(REFERENCES if name == OURS else ())):
            cells = [TITLES.get(model, model)]
            figures = [errors(part(table, data, i), model, data.spread) for i in range(len(PARTS))]
            cells += [f"{each['mse']:.4f}" for each in figures]
            both = errors(table, model, data.spread)
            for key in ("pinball", "coverage-80", "coverage-95"):
                cells.append(
                    ""
                    if key not in both
                    else f"{both[key]:.4f}"
                    if key == "pinball"
                    else f"{100 * both[key]:.1f} %"
                )
            own = model == name
            cells += [f"{cost.seconds:,.0f}", f"{cost.megabytes:,.0f}"] if own else ["", ""]
            found.append(cells)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="milan_net_441cells_hourly.npz")
    parser.add_argument("--python", type=Path, help="of the environment with benchmarks/peers.txt")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--horizons", type=int, nargs="+", default=[1, DAY])
    parser.add_argument("--only", nargs="+", default=list(TITLES), choices=list(TITLES))
    parser.add_argument("--out", type=Path, default=Path("build/peers"))
    options = parser.parse_args()
    folder = options.out / f"{options.clients}-clients"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        data = read(options.data, options.clients, folder)
    except FuelsError as error:
        sys.exit(str(error))
    header = ["", "MSE 1", "MSE 2", "pinball", "in 80 %", "in 95 %", "CPU s", "MB"]
    for horizon in options.horizons:
        found = {
            name: cost_of(name, options.python, data, horizon, folder) for name in options.only
        }
        print(f"\n{horizon} ahead\n\n| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
        costs = {name: cost for name, cost in found.items() if cost is not None}
        for cells in rows(data, horizon, folder, costs):
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
