"""A site's side of masked uploads: it trains a round, and sends one masked sum over its clients.

The request names the set of sites. The site checks it before it trains (sharing/secure_sums.py),
stores what its clients add with its models, masks it, stores the masked words, and sends these. So
a retry, also after a restart, sends the same bytes, and no mask is used twice. For one starting
model and round it answers for one set only, also in another run: the difference of two totals over
different sets would be the upload of the sites between them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode, text_list
from fuels.federation.flower.folders import RefusalError, SiteConfig, SiteFolder, log
from fuels.federation.flower.messages import reply
from fuels.federation.flower.outbox import check_upload
from fuels.federation.flower.progress import Progress
from fuels.federation.flower.records import SiteRecords
from fuels.federation.flower.sum_keys import secure_sums
from fuels.federation.flower.sum_site import need_clients
from fuels.methods.messages import Arrays, Download
from fuels.runs.build import Job
from fuels.sharing.fixed_point import Words
from fuels.sharing.masked_uploads import NAME, Terms, shape_of, words_of
from fuels.sharing.masks import SumId
from fuels.sharing.roster import read_roster
from fuels.sharing.secure_sums import SecureSums

MASKED = "masked"  # the facts of a request to train


class MaskedRound:
    """A request to train, at one site."""

    def __init__(self, folder: SiteFolder, config: SiteConfig, job: Job, request: Envelope) -> None:
        self.folder, self.config, self.job, self.request = folder, config, job, request

    def answer(
        self,
        asked: tuple[str, ...],
        download: Download,
        progress: Progress,
        made: float,
        records: SiteRecords,
    ) -> Envelope:
        """The masked sum, or the reason for none; trains the clients if they have not yet."""
        number = self.request.round
        try:
            sums, which, roster, terms = self._check(asked)
            source = f" from {digest_of(download.shared)}"
            words = sums.given(which, roster, source)
        except FuelsError as error:  # these errors quote no data
            log.error("%s", error)
            records.refused(str(error))
            return replace(self.request, facts={"refused": str(error)}, arrays={})
        known = progress.round == number and progress.trained == set(asked)
        if words is not None and not known:  # the site's state is older than what it has sent
            answer = replace(self.request, facts={"clients": list(asked)}, arrays={})
        elif known:
            log.info("round %d was already trained: repeating the reply", number)
            answer = decode(progress.answer, len(progress.answer))
        else:
            progress.need_newer(made, number)
            answer = self._train(asked, download, terms, len(which.sites))
            progress.save(self.job, number, encode(answer), made)
        if words is None:
            own: Words = answer.arrays["contribution"].view(np.uint64)
            words = sums.answer(which, roster, lambda: own, source)
        facts: dict[str, Any] = {"run": self.request.run, "step": number, "name": NAME}
        records.audit.add("sum", **facts, sites=list(which.sites))
        arrays = {name: a for name, a in answer.arrays.items() if name != "contribution"}
        return replace(answer, arrays={**arrays, "words": words.view(np.int64)})

    def _check(self, asked: tuple[str, ...]) -> tuple[SecureSums, SumId, bytes, Terms]:
        facts, settings = self.request.facts.get(MASKED), self.job.settings
        if not isinstance(facts, dict):
            raise FuelsError(
                f"round {self.request.round}: the uploads of this run are masked (privacy.masked),"
                " but the server names no set of sites"
            )
        sums = secure_sums(self.folder, self.config, settings.sharing.min_clients)
        clients = _whole(facts, "clients")
        if clients < sums.min_clients:
            raise FuelsError(
                f"round {self.request.round}: {clients} clients are asked to train, and at least"
                f" {sums.min_clients} are required (min_clients)"
            )
        bound = facts.get("bound")
        if type(bound) is not float:
            raise FuelsError("the server's bound on updates is not a number")
        clip = settings.defence.clip
        terms = Terms(_whole(facts, "most_samples"), clip, bound if clip else 0.0)
        own = self.job.method.facts
        if own.train_periods * own.period > terms.most_samples:
            raise FuelsError(f"a client of this site has more than {terms.most_samples} samples")
        roster = str(facts.get("roster", "")).encode()
        members = read_roster(roster, sums.ca, self.config.federation)
        need_clients(members, self.config, len(self.job.dataset.ids))
        which = SumId(
            self.config.federation,
            members.serial,
            self.request.run,
            NAME,
            self.request.round,
            text_list(facts.get("sites"), "the list of sites"),
            shape_of(self.job.method.uploads(self.request.round)),
        )
        return sums, which, roster, terms

    def _train(
        self, asked: tuple[str, ...], download: Download, terms: Terms, sites: int
    ) -> Envelope:
        """Train, and what the clients add, without masks: this envelope does not leave the site."""
        number, method = self.request.round, self.job.method
        log.info("run %s, round %d: %d clients train", self.request.run, number, len(asked))
        upload, report = self.job.site.train(number, asked, download)
        try:
            good, withheld = check_upload(method, number, upload, asked)
        except RefusalError:  # others need this site's masks: it adds zeros
            good, withheld = upload.take([]), list(asked)
        before: Arrays = {name: download.shared[name] for name in good.arrays}
        words, large = words_of(good, before, terms, sites)
        for client in large:
            log.error("round %d: nothing of client %s is sent: it is too large", number, client)
        clients = [client for client in good.clients if client not in large]
        answer = reply(self.request, None, report.of(clients))
        facts = {"clients": clients, "withheld": [*withheld, *large]}
        arrays = {**answer.arrays, "contribution": words.view(np.int64)}
        return replace(answer, facts=facts, arrays=arrays)


def digest_of(shared: Arrays) -> str:
    """Of the model that a round starts from."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(shared):
        found.update(f"{name} {shared[name].shape};".encode() + shared[name].tobytes())
    return found.hexdigest()


def _whole(facts: dict[str, Any], name: str) -> int:
    found = facts.get(name)
    if type(found) is not int:
        raise FuelsError(f"the server's {name.replace('_', ' ')} is not a whole number")
    return found
