"""FUELS against Solo: what sharing prototypes is worth, one factor at a time.

    python benchmarks/solo.py results/records.jsonl.xz [runs/store ...] [--divide-test 11,11]
    python benchmarks/solo.py --run FOLDER/milan_net_441cells_hourly.npz [--store runs/store]

The first command pairs the FUELS runs in archives and folders of records with the Solo runs on the
same data, split, clients, rounds and seeds, and prints a row for each variant of FUELS: mean and
median MSE over the clients, the 90th percentile, the share of clients that do better with FUELS,
and the paired Wilcoxon test over clients.

The second trains what is missing, the shortest series of runs first, and prints the same table: 100
clients, 200 rounds, split 40/0/22, 5 seeds, FUELS as in the paper and with one setting changed, on
Milan and on "resort days", where a third of the cells is multiplied by 4 after the training part.
About 12 hours of two cores; an interrupted study goes on with the same command.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from fuels.config import Engine, Settings, merge, to_dict
from fuels.data.panel import Panel
from fuels.data.readers import read_panel
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.methods.fuels import FuelsOptions
from fuels.research.study.archive import is_archive, read_archive
from fuels.research.study.compare import Row, paired
from fuels.research.study.periods import Lengths, parse_lengths, restricted
from fuels.research.study.progress import Reporter
from fuels.research.study.record import Record, flat
from fuels.research.study.store import DEFAULT_RUNS, Store, ensure_run

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"inter": False},
    {"detach": True},
    {"filter_start": "positive"},
    *({"shift": shift} for shift in (0.0, 0.2, 0.4, 0.6)),
    *({"tau": tau} for tau in (0.1, 0.5, 1.0)),
)
TRAIN, FACTOR, SHARE = 40, 4.0, 1 / 3  # of the resort days
HEADINGS = (
    *("data: FUELS", "seeds", "MSE FUELS", "MSE Solo", "change", "median FUELS", "median Solo"),
    *("90 % FUELS", "90 % Solo", "FUELS lower for", "p"),
)
# Settings in which a run of FUELS and one of Solo on the same data may differ.
APART = ("method", "seed", "options.", "data.", "windows.split")


# -- resort days -------------------------------------------------------------------------------


def resort_days(panel: Panel, period: int = 24) -> Panel:
    """A copy in which a third of the clients, the same in every call, grows after training."""
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(panel.ids), round(SHARE * len(panel.ids)), replace=False)
    values = np.array(panel.values)
    values[TRAIN * period :, chosen] *= FACTOR
    return replace(panel, values=values, name=f"{panel.name}_resort")


# -- pairs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """One variant of FUELS and Solo, the same seeds of both."""

    name: str
    fuels: tuple[Record, ...]
    solo: tuple[Record, ...]

    def cells(self) -> list[str]:
        rows = [Row(each[0].title, each, each[0].title, True) for each in (self.fuels, self.solo)]
        gain = paired(*rows)  # [client], positive where FUELS is lower
        errors = [np.array(list(row.errors().values())) for row in rows]
        cells = [f"{row.mean():.4f}" for row in rows]
        cells += [f"{100 * (rows[0].mean() / rows[1].mean() - 1):+.1f} %"]
        cells += [f"{np.median(each):.4f}" for each in errors]
        cells += [f"{np.percentile(each, 90):.4f}" for each in errors]
        p = f"{wilcoxon(gain).pvalue:.2g}" if len(gain) > 5 and gain.any() else "–"
        return [*cells, f"{100 * (gain > 0).mean():.0f} % of {len(gain)}", p]


def variant(record: Record) -> str:
    """How the options of a FUELS run differ from the paper's."""
    usual = vars(FuelsOptions())
    changed = {k: v for k, v in record.settings["options"].items() if usual.get(k) != v}
    return ", ".join(f"{key}={value}" for key, value in changed.items()) or "as in the paper"


def place(record: Record) -> tuple[str, str]:
    """What FUELS and Solo must have in common to be compared, the data in words first."""
    given = {**flat(to_dict(Settings())), **flat(record.settings)}  # early records name fewer
    settings = {  # 0 and 0.0 are the same
        name: f"{value:g}" if isinstance(value, float | int) else str(value)
        for name, value in given.items()
        if not name.startswith(APART)
    }
    named = f"{record.data['name']}, {len(record.clients)} clients, {record.rounds} rounds, split"
    named += f" {record.split}"
    if new := given["data.newcomers"]:
        named += f", newcomers {new}"
    if stretch := record.data.get("test_periods"):
        named += f", test periods {stretch[0]}-{stretch[1]}"
    return named, str(sorted(settings.items()))


def same_data(record: Record) -> tuple[Any, ...]:
    """The seed, the clients, and their scale, by which two readings of one file differ."""
    return record.settings["seed"], record.clients, record.std.tobytes()


def pairs(records: Sequence[Record]) -> list[Pair]:
    """All pairs, ordered by data and variant; runs without a partner are left out."""
    alone = [record for record in records if not record.mixture]  # no mixtures with experts
    solo = {(place(r), same_data(r)): r for r in alone if r.method == "solo"}
    found: dict[tuple[tuple[str, str], str], Pair] = {}
    for record in sorted(alone, key=lambda record: int(record.settings["seed"])):
        partner = solo.get((place(record), same_data(record)))
        if record.method != "fuels" or partner is None:
            continue
        key = place(record), variant(record)
        so_far = found.get(key, Pair(f"{key[0][0]}: {key[1]}", (), ()))
        found[key] = Pair(so_far.name, (*so_far.fuels, record), (*so_far.solo, partner))
    return [found[key] for key in sorted(found)]


def read_records(paths: Sequence[Path]) -> list[Record]:
    """The records of archives and folders, each run once."""
    found: dict[str, Record] = {}
    for path in paths:
        if is_archive(path):
            found |= read_archive(path)
        else:
            found |= {record.name: record for record in map(Record.read, path.glob("*.json"))}
    return list(found.values())


def divided(records: Sequence[Record], lengths: Lengths) -> list[Record]:
    """Records of stretches of the test part; those without errors by period are left out."""
    ends = np.cumsum(lengths).tolist()
    return [
        restricted(record, {}, first, end)
        for record in records
        if record.by_period and ends[-1] <= record.data["periods"][2]
        for first, end in zip([0, *ends[:-1]], ends, strict=True)
    ]


def print_table(records: Sequence[Record]) -> None:
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    for pair in pairs(records):
        seeds = ",".join(str(record.settings["seed"]) for record in pair.fuels)
        print(f"| {pair.name} | {seeds} | {' | '.join(pair.cells())} |", flush=True)


# -- the study ---------------------------------------------------------------------------------


def train(options: argparse.Namespace, folder: Path) -> list[Record]:
    """Every run of the study: both data, all variants, seed after seed."""
    panel = read_panel(options.run)
    write_panel(resort_days(panel), folder / f"{options.run.stem}_resort.npz")
    sources = [options.run, folder / f"{options.run.stem}_resort.npz"]
    store, reporter = Store(options.store, options.records), Reporter()
    common = {
        "data": {"clients": options.clients},
        "windows": {"split": options.split},
        "training": {"rounds": options.rounds},
    }
    wanted: list[Mapping[str, Any]] = [
        {"data": {"source": str(source)}, "seed": seed, "method": method, "options": chosen}
        for seed in range(options.seeds)
        for method, chosen in (("solo", {}), *(("fuels", each) for each in VARIANTS))
        for source in sources
    ]
    found = []
    for number, changes in enumerate(wanted, 1):
        settings = merge(merge(Settings(), common, "study"), changes, "study")
        place = reporter.run(number, len(wanted))
        engine = Engine(threads=options.threads)
        run = ensure_run(settings, engine, store, by_period=True, reporter=place)
        found.append(run.record)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", type=Path, nargs="*", metavar="RECORDS")
    parser.add_argument("--divide-test", default="", metavar="11,11")
    parser.add_argument("--run", type=Path, metavar="DATA")
    parser.add_argument("--store", type=Path, default=DEFAULT_RUNS)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--split", default="40/0/22")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    try:
        lengths = parse_lengths(options.divide_test, "--divide-test")
        if options.run is None:
            records = read_records(options.paths)
        else:
            with tempfile.TemporaryDirectory() as folder:
                records = train(options, Path(folder))
        print_table(divided(records, lengths) if lengths else records)
    except FuelsError as error:
        sys.exit(f"solo.py: {error}")


if __name__ == "__main__":
    main()
