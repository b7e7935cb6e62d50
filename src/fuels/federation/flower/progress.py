"""The progress of a site in a run: what it needs to go on after a restart, in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.federation.codec import decode
from fuels.federation.flower.folders import RefusalError, log
from fuels.federation.flower.protection import identity_of
from fuels.runs.build import Job, fingerprint
from fuels.runs.settings import same_settings
from fuels.storage.checkpoint import load_state, prefixed, save_state, unprefixed


class Progress:
    """The progress of a site in a run, on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrays: dict[str, NDArray[Any]] = {}
        self.facts: dict[str, Any] = {}
        self.round, self.answer = 0, b""
        self.made = 0.0  # when the server made the request that was trained last
        if path.exists():
            try:
                self.arrays, self.facts = load_state(path)
            except FuelsError as error:
                log.error(
                    "%s; restore it from a backup, or delete it: the site then continues this run"
                    " from the common initial model",
                    error,
                )
                raise RefusalError(
                    "its state of this run cannot be read; its log names the remedy"
                ) from None
            self.round = int(self.facts["round"])
            self.answer = self.arrays["answer"].tobytes()
            self.made = float(self.facts.get("made", 0.0))

    @property
    def trained(self) -> set[str]:
        """The clients that the reply covers: sent or withheld."""
        facts = decode(self.answer, len(self.answer)).facts
        return {*facts["clients"], *facts.get("withheld", ())}

    def need_newer(self, made: float, number: int) -> None:
        """Refuse a request to train that the server made before one that was already trained."""
        if made < self.made:
            raise RefusalError(
                f"the request of round {number} is older than that of round {self.round}, which was"
                " already trained"
            )
        if self.round > number:
            log.warning(
                "the server asks for round %d and this site has trained round %d: it continues from"
                " its current models",
                number, self.round,
            )  # fmt: skip

    def restore(self, job: Job) -> None:
        """Restore the state of the clients; refuses other data or other settings."""
        same = {
            "data": self.facts["data"] == fingerprint(job.dataset),
            "settings": same_settings(json.loads(self.facts["settings"]), job.settings, "data"),
            "secrets": self.facts.get("secret", "") == identity_of(job)["secret"],
        }
        for what, unchanged in same.items():
            if not unchanged:
                again = " (a data file must not change before its run ends)" * (what == "data")
                raise RefusalError(
                    f"the {what} of this site differ from those this run started with{again}"
                )
        job.site.load(unprefixed("site", self.arrays))

    def save(self, job: Job, number: int, answer: bytes, made: float) -> None:
        arrays = prefixed("site", job.site.state())
        arrays["answer"] = np.frombuffer(answer, dtype=np.uint8)
        save_state(self.path, arrays, {"round": number, "made": made, **identity_of(job)})
