"""A site's side of the federation: read a request, check it, train, answer.

A process may be killed at any moment, so all that matters lies in the site's folder: models,
optimiser memory, W_n, the round, and the answer given to it, in one file that is replaced as a
whole. A request for a round that was trained already gets the same answer again, and nothing is
trained twice; if it is for other clients, because the server has drawn again, they are trained. One
process at a time works on a run: others wait for its lock, which the system
releases even if the process is killed.
"""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.config import Settings, to_dict
from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.declaration import ROUNDS, growing, of_a_period
from fuels.federation.flower.letters import (
    read_best_round,
    read_request,
    reply,
    without_figures,
)
from fuels.federation.flower.parties import Consent, RefusalError, SiteConfig, SiteFolder, log
from fuels.federation.flower.secret import SECRET, own_secret
from fuels.federation.guard import download_refusal, refusals
from fuels.federation.refusals import general
from fuels.methods.base import Method
from fuels.methods.messages import Download, Upload
from fuels.privacy.noise import NONE
from fuels.runs.build import Job, build, fingerprint, train_periods
from fuels.storage.checkpoint import load_state, prefixed, save_state, unprefixed

RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class Desk:
    """Answers requests of one run at one site."""

    def __init__(self, folder: SiteFolder, settings: Settings, data: str = "") -> None:
        self.folder, self.config = folder, folder.config_for(data)
        self.settings = replace(settings, data=self.config.data)

    def answer(self, request: bytes, *, made: float, expires: float = float("inf")) -> bytes:
        """The reply to a request; FuelsError says why there is none.

        `made` and `expires`, in the server's seconds since 1970: a request that waited longer is
        not worked on, nor one to train that was made before another that was trained already.
        """
        try:
            envelope = decode(request, self.config.consent.largest_message_mb * 2**20)
        except FuelsError as error:  # it speaks of the server's message alone
            raise RefusalError(f"the server's message is refused: {error}") from None
        if envelope.site != self.config.name:
            raise RefusalError(f"the message is for site {envelope.site!r}, this is another")
        if not RUN.fullmatch(envelope.run):
            raise RefusalError("the run has no acceptable name")
        check_consent(self.settings.method, self.config)
        run = self.folder.runs / envelope.run
        run.mkdir(parents=True, exist_ok=True)
        with exclusive(run / "lock"):
            if time.time() > expires:
                raise RefusalError(f"the request of round {envelope.round} came too late")
            letter = self._handle(envelope, Progress(run / "state.safetensors"), made)
            if not self.config.consent.metrics:  # as it is now, whenever they were computed
                letter = without_figures(letter)
            answer = encode(letter)
            if self.config.consent.keep_copies:
                keep(answer, run / "sent", f"{envelope.kind}-{envelope.round:05d}")
            return answer

    def _handle(self, envelope: Envelope, progress: Progress, made: float) -> Envelope:
        noise = self.settings.options.get("noise", NONE)
        secret = b"" if noise == NONE else own_secret(self.folder.state / SECRET)
        with build(self.settings, self.config.engine, secret=secret) as job:
            check_declaration(job.method, self.config.consent, envelope.round)
            progress.restore(job)
            return self._work(job, envelope, progress, made)

    def _work(self, job: Job, envelope: Envelope, progress: Progress, made: float) -> Envelope:
        try:
            asked, download = read_request(envelope)
            best_round = read_best_round(envelope)
        except FuelsError as error:
            raise RefusalError(f"the server's message is refused: {error}") from None
        strangers = sorted(set(asked) - set(job.dataset.ids))
        if strangers:
            raise RefusalError(f"the server asks for {strangers[0]!r}, no client of this site")
        everyone = job.dataset.ids
        expected = asked if envelope.kind == "train" else everyone
        reason = download_refusal(download, job.method.downloads(), expected)
        if reason:
            raise RefusalError(
                f"the server's message of round {envelope.round} is refused: {reason}"
            )
        if envelope.kind == "hello":
            facts = {"clients": list(everyone), "train_periods": train_periods(job.dataset)}
            return replace(reply(envelope, None, None), facts=facts)
        if envelope.kind == "train":
            return self._train(job, envelope, asked, download, progress, made)
        if envelope.kind == "evaluate":
            return self._evaluate(job, envelope, download, progress)
        from fuels.federation.flower.results import write_results

        path = progress.path.parent
        write_results(job, path, download, envelope.round, self.config.engine, best_round)
        return reply(envelope, None, None)

    def _train(
        self,
        job: Job,
        envelope: Envelope,
        asked: tuple[str, ...],
        download: Download,
        progress: Progress,
        made: float,
    ) -> Envelope:
        if not asked:
            raise RefusalError(f"round {envelope.round}: the server asked for no client")
        if progress.round == envelope.round and progress.trained.intersection(asked):
            log.info("round %d was trained already: same answer again", envelope.round)
            return decode(progress.answer, len(progress.answer))
        if made < progress.made:
            raise RefusalError(
                f"the request of round {envelope.round} is older than that of round"
                f" {progress.round}, which was trained already"
            )
        if progress.round > envelope.round:
            log.warning(
                "the server asks for round %d, this site is at %d: it goes on from its models",
                envelope.round, progress.round,
            )  # fmt: skip
        log.info("run %s, round %d: %d clients train", envelope.run, envelope.round, len(asked))
        upload, report = job.site.train(envelope.round, asked, download)
        good, withheld = check_upload(job.method, envelope.round, upload, asked)
        letter = reply(envelope, good, report.of(good.clients))
        if withheld:
            letter = replace(letter, facts={**letter.facts, "withheld": withheld})
        progress.save(job, envelope.round, encode(letter), made)
        return letter

    def _evaluate(
        self, job: Job, envelope: Envelope, download: Download, progress: Progress
    ) -> Envelope:
        report = job.site.evaluate(envelope.round, download)
        if job.site.best:  # the best models seen so far are kept here
            progress.save(job, progress.round, progress.answer, progress.made)
        return reply(envelope, None, report)


class Progress:
    """How far a site is in a run, on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrays: dict[str, NDArray[Any]] = {}
        self.facts: dict[str, Any] = {}
        self.round, self.answer = 0, b""
        self.made = 0.0  # when the server made the request that was trained last
        if path.exists():
            self.arrays, self.facts = load_state(path)
            self.round = int(self.facts["round"])
            self.answer = self.arrays["answer"].tobytes()
            self.made = float(self.facts.get("made", 0.0))

    @property
    def trained(self) -> set[str]:
        """The clients of which the answer says something: sent, or withheld."""
        facts = decode(self.answer, len(self.answer)).facts
        return {*facts["clients"], *facts.get("withheld", ())}

    def restore(self, job: Job) -> None:
        """Bring the job to where the site left off; refuses other data or other settings."""
        if not self.facts:
            return
        for what, value in _identity(job).items():
            if self.facts[what] != value:
                raise RefusalError(f"the {what} of this site differ from those this run began with")
        job.site.load(unprefixed("site", self.arrays))

    def save(self, job: Job, number: int, answer: bytes, made: float) -> None:
        arrays = prefixed("site", job.site.state())
        arrays["answer"] = np.frombuffer(answer, dtype=np.uint8)
        save_state(self.path, arrays, {"round": number, "made": made, **_identity(job)})


def _identity(job: Job) -> dict[str, str]:
    settings: Mapping[str, Any] = to_dict(job.settings)
    return {
        "data": fingerprint(job.dataset),
        "settings": json.dumps({k: v for k, v in settings.items() if k != "data"}, sort_keys=True),
    }


def check_consent(method: str, config: SiteConfig) -> None:
    """Whether this site takes part in runs of the method at all."""
    if method not in config.consent.methods:
        allowed = ", ".join(config.consent.methods)
        raise RefusalError(f"site {config.name} does not consent to {method} (only {allowed})")


def check_declaration(method: Method, consent: Consent, number: int) -> None:
    """Whether this site consents to all that the method declares to upload."""
    if consent.raw_derived:
        return
    sent = {name: sent for n in (*ROUNDS, number) for name, sent in method.uploads(n).items()}
    reasons: dict[str, str] = {}
    if method.facts.train_periods < consent.least_periods:
        mean = f"is a mean of fewer than {consent.least_periods} periods (consent.least_periods)"
        reasons |= dict.fromkeys(of_a_period(method), mean)
    if method.facts.period > consent.longest_period:
        rows = f"has more than {consent.longest_period} rows (consent.longest_period)"
        reasons |= dict.fromkeys(of_a_period(method), rows)
    reasons |= dict.fromkeys(growing(method), "has rows for every training period")
    reasons |= {name: "is computed from raw values" for name in sent if sent[name].raw}
    if reasons:
        name, reason = next(iter(reasons.items()))
        raise RefusalError(
            f"{method.title} with these options sends {name}, which {reason}; this site does not"
            " consent to it (consent.raw_derived in its site.toml)"
        )


def check_upload(
    method: Method, number: int, upload: Upload, asked: tuple[str, ...]
) -> tuple[Upload, list[str]]:
    """The last look before anything leaves: only what the method declares, of the clients asked.

    Returns what may be sent, and the clients of which nothing may, for instance because their
    training diverged; they do not silence the others.
    """
    counted = method.counts(number)
    reasons, whole = refusals(upload, method.uploads(number), asked, counted=counted)
    rows = [i for i, client in enumerate(upload.clients) if client not in reasons]
    for client, reason in reasons.items():
        log.error("round %d: nothing of client %s is sent: %s", number, client, reason)
    if whole or not rows:
        told = {client: general(reason) for client, reason in reasons.items()}  # no numbers of ours
        why = general(whole) or "; ".join(f"client {c}: {reason}" for c, reason in told.items())
        raise RefusalError(f"nothing is sent: {why}")
    return (upload.take(rows) if reasons else upload), list(reasons)


def keep(answer: bytes, folder: Path, name: str) -> None:
    """A copy of what leaves; another answer to the same question is a file of its own."""
    folder.mkdir(exist_ok=True)
    for number in count(1):
        path = folder / (f"{name}.bin" if number == 1 else f"{name}-{number}.bin")
        if not path.exists():
            path.write_bytes(answer)
        if path.read_bytes() == answer:
            return


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait for, then hold, a lock that ends with this process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
