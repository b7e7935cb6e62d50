"""What a server and a site write down for their operators: the audit log, and figures for metrics.

Figures are a small JSON file that is replaced after each round at the server, and after each
request at a site; metrics.py reads it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuels.federation.audit import Audit
from fuels.federation.flower.folders import Consent, ServerFolder, SiteFolder
from fuels.federation.reasons import general

if TYPE_CHECKING:
    from fuels.federation.flower.transport import FlowerTransport
    from fuels.federation.loop import Loop, Round


def audit(folder: ServerFolder | SiteFolder) -> Audit:
    return Audit(folder.audit)


def read_figures(path: Path) -> dict[str, Any]:
    """The figures written last; none if there is no readable file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_figures(path: Path, figures: Mapping[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(figures) + "\n", encoding="utf-8")
    temporary.replace(path)


class Figures:
    """Writes the server's figures after each round."""

    def __init__(
        self, folder: ServerFolder, run: str, loop: Loop, transport: FlowerTransport
    ) -> None:
        self.path, self.run = folder.figures, run
        self.loop, self.transport = loop, transport

    def on_round(self, done: Round) -> None:
        transport, refused = self.transport, self.transport.refused
        used = transport.guard.used
        figures = {
            "run": self.run,
            "round": done.number,
            "rounds": done.of,
            "time": time.time(),
            "seconds": sum(done.stages.values()),
            "clients": done.clients,
            "val_mse": done.line()["val_mse"],
            "connected": len(transport.network.connected()),
            "replies": len(transport.replies),
            "quorum": transport.needed,
            "refused": refused.counts,
            "excluded": sorted(transport.exclusion.reasons),
            "left_out": done.left_out,
            "counters": transport.requests.counters,
            "age": {s: done.number - used.get(s, 0) for s in sorted(transport.members.sites)},
        }
        write_figures(self.path, figures)


class SiteRecords:
    """What a site writes down: changed consent, what it sends, and what it refuses to send."""

    def __init__(self, folder: SiteFolder) -> None:
        self.folder, self.audit = folder, audit(folder)

    def consent(self, now: Consent) -> None:
        """Record the consent if it is not the one recorded last."""
        path = self.folder.state / "consent.json"
        stated = json.loads(json.dumps(asdict(now)))
        if read_figures(path) != stated:
            self.audit.add("consent", **stated)
            write_figures(path, stated)

    def sent(self, run: str, kind: str, number: int, content: bytes, received: int) -> None:
        """Before a reply leaves."""
        self.audit.add(
            "sent", run=run, kind=kind, round=number, bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )  # fmt: skip
        sent_now = {"uploaded": time.time()} if kind == "train" else {}
        self._count(
            {"run": run, "round": number, **sent_now},
            {"bytes_up": len(content), "bytes_down": received, f"requests {kind}": 1},
        )

    def contributed(self, run: str, step: str, content: bytes) -> None:
        """Before a masked contribution to the live mean leaves."""
        digest = hashlib.sha256(content).hexdigest()
        self.audit.add("sent", run=run, kind="sum", step=step, bytes=len(content), sha256=digest)
        self._count({"contributed": time.time()}, {})

    def counted(self, kind: str, sent: int, received: int) -> None:
        """A request of a live series."""
        self._count({}, {"bytes_up": sent, "bytes_down": received, f"requests {kind}": 1})

    def refused(self, reason: str) -> None:
        """A request that is answered with a reason only."""
        self.audit.add("refused", reason=reason)
        self._count({}, {f"refused {general(reason)}": 1})

    def _count(self, newest: Mapping[str, Any], more: Mapping[str, int]) -> None:
        figures = read_figures(self.folder.figures)
        counts = Counter(figures.get("counts", {}))
        counts.update(more)
        write_figures(self.folder.figures, {**figures, **newest, "counts": counts})
