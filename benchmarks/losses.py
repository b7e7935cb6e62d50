"""How fast the terms of the loss fade, from the records of FUELS runs.

    python benchmarks/losses.py results/records.jsonl.xz [--only fuels-82a76c2616f0]

The mean of each term over all rows trained in a round. L_inter is log(1 + e^x), which is never
less than the sigmoid of x, the share that is left of the full strength of its gradient: a mean
L_inter of 2e-5 leaves at most 2e-5 of that strength on the rows trained.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fuels.errors import FuelsError
from fuels.research.study.archive import read_archive
from fuels.research.study.record import Record

ROUNDS = (1, 2, 3, 5, 10, 20, 40, 80, 200)


def lines(record: Record) -> list[str]:
    """Rows of the table: one per term."""
    place = f"{record.name}, {record.data_name}, {len(record.clients)} clients"
    found = []
    for term in ("prediction", "intra", "inter"):
        values = record.history.get(f"loss_{term}", ())
        shown = [f"{values[r - 1]:.2g}" if r <= len(values) else "" for r in ROUNDS]
        found.append(f"| {place} | {term} | {' | '.join(shown)} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("records", type=Path)
    parser.add_argument(
        "--only", default="fuels-", metavar="START", help="start of a record's name"
    )
    options = parser.parse_args()
    try:
        archive = read_archive(options.records)
    except FuelsError as error:
        sys.exit(f"losses: {error}")
    print(f"| run | term | {' | '.join(f'round {r}' for r in ROUNDS)} |")
    print(f"|---|---|{'---|' * len(ROUNDS)}")
    for name, record in archive.items():
        if name.startswith(options.only):
            print("\n".join(lines(record)))


if __name__ == "__main__":
    main()
