"""Sites that join after a run: they get its totals at once, and contribute to the next run.

At its end, a run writes down the request that its sites get: the totals of its sums and, with some
methods, the model of all clients. A site that joins later gets the same request, from the run's
live series or from `fuels federation run --resume`. Like the others it then has a run folder, with
which it can forecast and receive the live mean; its personal models have never trained. It adds
nothing to the run's sums: their coefficients were estimated without it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fuels.data.files import writing
from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import ServerFolder, log
from fuels.federation.flower.inbox import Network, Time, reading
from fuels.federation.flower.messages import Extra, request
from fuels.federation.flower.records import audit
from fuels.federation.guard import OVERHEAD
from fuels.methods.messages import Download
from fuels.storage.checkpoint import load_state, save_state
from fuels.storage.run_folder import RunFolder

END = "finish"  # the kind of the request
FILE = "end.safetensors"  # the request, in the server's run folder
SERVED = "newcomers.json"  # the sites that have confirmed it
POLL = 0.1  # seconds between two looks for replies


def keep_end(folder: Path, number: int, download: Download, best_round: int, extra: Extra) -> None:
    """Write down the last request of a run, without what is for single clients."""
    envelope = request(END, "", number, "", (), download.take(()), best_round, extra)
    save_state(folder / FILE, dict(envelope.arrays), {**envelope.facts, "round": number})


class Newcomers:
    """The sites that were not in a finished run, and what they get of it."""

    def __init__(self, folder: ServerFolder, run: str) -> None:
        self.folder, self.run, self.path = folder, run, folder.runs / run
        # Without a list of its sites, as in runs of earlier versions, everybody was in it.
        facts = self._read(RunFolder(self.path).summary.name) or {}
        self.members: set[str] | None = set(facts["sites"]) if "sites" in facts else None
        self.served = set(self._read(SERVED) or ())
        self.end = self._end()

    def among(self, sites: set[str]) -> set[str]:
        """Those that were not in the run."""
        return set() if self.members is None else sites - self.members

    def waiting(self, sites: set[str]) -> set[str]:
        """Those that are still to get the end of the run."""
        return set() if self.end is None else self.among(sites) - self.served

    def request(self, site: str) -> Envelope:
        assert self.end is not None
        return replace(self.end, site=site)

    def _read(self, name: str) -> Any:
        """A file of the run's folder; None if there is none, or if it is damaged."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _end(self) -> Envelope | None:
        if not (self.path / FILE).is_file():
            return None
        try:
            arrays, facts = load_state(self.path / FILE)
            return Envelope(END, self.run, int(facts.pop("round")), "", facts, arrays)
        except (FuelsError, KeyError, TypeError, ValueError) as error:
            log.error("%s: new sites get no totals of this run (%s)", self.path / FILE, error)
            return None

    def confirmed(self, site: str) -> None:
        """A site has a run folder now."""
        self.served.add(site)
        with writing(self.path / SERVED) as temporary:
            temporary.write_text(json.dumps(sorted(self.served)) + "\n", encoding="utf-8")
        audit(self.folder).add("newcomer", run=self.run, site=site)
        log.info("%s has the totals of run %s; it contributes to the next run", site, self.run)


def hand_over(network: Network, folder: ServerFolder, run: str, time: Time) -> None:
    """Give the end of a finished run to connected sites that were not in it."""
    newcomers, patience = Newcomers(folder, run), folder.config.rules.deadline
    sites = sorted(newcomers.waiting(network.connected() & network.allowed()))
    contents = {site: encode(newcomers.request(site)) for site in sites}
    tickets = network.send(contents, END, 0, patience) if contents else []
    asked = dict(zip(tickets, sites, strict=True))
    end = time.clock() + patience
    while asked and time.clock() < end:
        for ticket, reply in network.collect(list(asked)).items():
            site = asked.pop(ticket)
            try:
                if isinstance(reply, FuelsError):
                    raise reply
                found = reading(partial(decode, reply, OVERHEAD))
                if (found.kind, found.run, found.site) != (END, run, site):
                    raise FuelsError("it does not answer the request")
                newcomers.confirmed(site)
            except FuelsError as error:
                log.warning("%s: %s", site, error)
        time.sleep(POLL)
