"""The costs of a federation as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fuels.report.tables import Table, columns
from fuels.research.costs import Cost, Sizes


def sent_table(found: Sequence[Cost], sizes: Sizes) -> Table:
    """What travels: per client and round, from the server, and over the whole training."""
    return Table(
        columns=columns(
            "method | clients a round | a client sends (numbers a round)"
            " | a client gets (numbers a round) | the server sends (numbers a round) | in all (MB)"
        ),
        rows=[[c.title, c.chosen, c.up, c.down, c.server_down, c.bytes_total / 1e6] for c in found],
        title=f"Numbers sent, {sizes.clients:,} clients and {sizes.rounds:,} rounds",
    )


def work_table(found: Sequence[Cost], sizes: Sizes) -> Table:
    """What a client computes in a round, in millions of multiply-adds."""
    return Table(
        columns=columns(
            "method | training, client (appendix) | training, client (code)"
            " | inference, client (appendix) | inference, client (code)"
        ),
        rows=[
            [
                c.title,
                *(None if work is None else work / 1e6 for work in (c.train_appendix, c.train)),
                *(None if work is None else work / 1e6 for work in (c.infer_appendix, c.infer)),
            ]
            for c in found
        ],
        title=f"Millions of operations in a round of {sizes.iterations} batches, and to forecast"
        f" {sizes.test_periods} periods",
    )


def server_table(found: Sequence[Cost]) -> Table:
    """What the server computes in a round."""
    return Table(
        columns=columns(
            "method | server (appendix) | divergences (pairs, code) | operations (millions, code)"
        ),
        rows=[[c.title, c.server_appendix, c.pairs, c.server / 1e6] for c in found],
        title="What the server computes in a round",
    )


def to_json(sizes: Sizes, found: Sequence[Cost]) -> dict[str, Any]:
    """All figures, with the values of FE, FF and FD."""
    return {
        "sizes": asdict(sizes)
        | {name: getattr(sizes, name) for name in ("iterations", "model", "encoder", "prototype")}
        | {"FE": sizes.encode, "FF": sizes.filter, "FD": sizes.decode},
        "methods": {
            cost.method: asdict(cost)
            | {"server_down": cost.server_down, "bytes_total": cost.bytes_total}
            for cost in found
        },
    }
