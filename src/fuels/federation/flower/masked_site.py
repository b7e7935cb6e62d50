"""A site's side of masked uploads: it trains a round, and sends one masked sum over its clients.

The request names the sites of the set and how many clients each of them trains. The site checks it
before it trains (sharing/secure_sums.py), stores what its clients add with its models, masks it,
stores the masked words, and sends these. So a retry, also after a restart, sends the same bytes,
and no mask is used twice.

From one model a site answers for one set of sites, one choice of its clients and one bound only, in
any round and run: the difference of two totals would be the upload of the sites or clients in which
they differ. The masks depend on all that the site was given (sharing/masked_uploads.py). So nobody
can read a total of sites that were given different models, settings or bounds, where the upload of
one of them could be told from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import RefusalError, SiteConfig, SiteFolder, log
from fuels.federation.flower.messages import reply
from fuels.federation.flower.outbox import check_upload
from fuels.federation.flower.progress import Progress
from fuels.federation.flower.protection import identity_of
from fuels.federation.flower.records import SiteRecords
from fuels.federation.flower.sum_keys import secure_sums
from fuels.federation.flower.sum_site import need_clients
from fuels.methods.messages import Arrays, Download
from fuels.runs.build import Job
from fuels.sharing.answers import Origin
from fuels.sharing.fixed_point import Words
from fuels.sharing.masked_uploads import NAME, Terms, digest_of, given_alike, shape_of, words_of
from fuels.sharing.masks import SumId
from fuels.sharing.roster import read_roster
from fuels.sharing.secure_sums import SecureSums

MASKED = "masked"  # the facts of a request to train
CHECK = "check"  # a request that asks whether a site would train, before any site of a set does


@dataclass(frozen=True)
class Asked:
    """A request that this site may answer."""

    sums: SecureSums
    which: SumId
    roster: bytes
    origin: Origin
    terms: Terms

    def given(self) -> Words | None:
        """What was already sent; a FuelsError says why nothing may be."""
        return self.sums.given(self.which, self.roster, self.origin)


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
        number, stated = self.request.round, self.request.facts.get(MASKED)
        about = {"about": stated.get("clients")} if isinstance(stated, dict) else {}
        try:
            found = self._check(asked, download)
            words = found.given()
        except FuelsError as error:  # these errors quote no data
            log.error("%s", error)
            records.refused(str(error))
            return replace(self.request, facts={"refused": str(error), **about}, arrays={})
        if self.request.kind == CHECK:
            return replace(self.request, facts=about, arrays={})
        which = found.which
        trained = decode(progress.answer, len(progress.answer)) if progress.answer else None
        if trained is not None and trained.facts.get("sum") == which.digest:
            log.info("round %d was already trained: repeating the reply", number)
        elif words is not None:  # the site's state is older than what it has sent
            trained = replace(self.request, facts={"clients": list(asked)}, arrays={})
        else:
            progress.need_newer(made, number)
            trained = self._train(asked, download, found)
            progress.save(self.job, number, encode(trained), made)
        if words is None:
            own: Words = trained.arrays["contribution"].view(np.uint64)
            words = found.sums.answer(which, found.roster, lambda: own, found.origin)
        summary: dict[str, Any] = {"run": self.request.run, "step": number, "name": NAME}
        records.audit.add("sum", **summary, sites=list(which.sites))
        facts = {name: value for name, value in trained.facts.items() if name != "sum"}
        arrays = {name: a for name, a in trained.arrays.items() if name != "contribution"}
        return replace(trained, facts=facts, arrays={**arrays, "words": words.view(np.int64)})

    def _check(self, asked: tuple[str, ...], download: Download) -> Asked:
        facts, settings, number = (
            self.request.facts.get(MASKED),
            self.job.settings,
            self.request.round,
        )
        if not isinstance(facts, dict):
            raise FuelsError(
                f"round {number}: the uploads of this run are masked (privacy.masked), but the"
                " server names no set of sites"
            )
        if download.personal:
            raise FuelsError(
                f"round {number}: the server sends arrays for single clients, but with masked"
                " uploads all clients start from the same ones"
            )
        sums = secure_sums(self.folder, self.config, settings.sharing.min_clients)
        clients = self._clients(facts.get("clients"), asked)
        if (count := sum(clients.values())) < sums.min_clients:
            raise FuelsError(
                f"round {number}: {count} clients are asked to train, and at least"
                f" {sums.min_clients} are required (min_clients)"
            )
        bound = facts.get("bound")
        if type(bound) is not float:
            raise FuelsError("the server's bound on updates is not a number")
        clip = settings.defence.clip
        terms = Terms(
            _whole(facts.get("most_samples"), "most samples"), clip, bound if clip else 0.0
        )
        own = self.job.method.facts
        if own.train_periods * own.period > terms.most_samples:
            raise FuelsError(f"a client of this site has more than {terms.most_samples} samples")
        roster = str(facts.get("roster", "")).encode()
        members = read_roster(roster, sums.ca, self.config.federation)
        need_clients(members, self.config, len(self.job.dataset.ids))
        model, agreed = digest_of(download.shared), identity_of(self.job)["settings"]
        which = SumId(
            self.config.federation,
            members.serial,
            self.request.run,
            NAME,
            number,
            tuple(sorted(clients)),
            shape_of(self.job.method.uploads(number)),
            given_alike(model, terms, clients, agreed, members.digest),
        )
        return Asked(sums, which, roster, Origin(model, asked, terms.applied), terms)

    def _clients(self, found: Any, asked: tuple[str, ...]) -> Mapping[str, int]:
        """How many clients each site of the set trains, as every site receives it."""
        if not isinstance(found, dict):
            raise FuelsError("the server does not say how many clients each site trains")
        if any(_whole(count, "number of clients") < 1 for count in found.values()):
            raise FuelsError("the server names a site without clients")
        if len(set(asked)) != len(asked):
            raise FuelsError("the server asks for a client twice")
        stated = found.get(self.config.name, len(asked))  # a set without this site is refused later
        if stated != len(asked):
            raise FuelsError(
                f"the server asks for {len(asked)} clients of this site but tells the sites that"
                f" there are {stated}"
            )
        return found

    def _train(self, asked: tuple[str, ...], download: Download, found: Asked) -> Envelope:
        """Train, and what the clients add, without masks: this envelope does not leave the site."""
        number, method = self.request.round, self.job.method
        log.info("run %s, round %d: %d clients train", self.request.run, number, len(asked))
        upload, report = self.job.site.train(number, asked, download)
        try:
            good, withheld = check_upload(method, number, upload, asked)
        except RefusalError:  # others need this site's masks: it adds zeros
            good, withheld = upload.take([]), list(asked)
        before: Arrays = {name: download.shared[name] for name in good.arrays}
        words, large = words_of(good, before, found.terms, len(found.which.sites))
        for client in large:
            log.error("round %d: nothing of client %s is sent: it is too large", number, client)
        clients = [client for client in good.clients if client not in large]
        answer = reply(self.request, None, report.of(clients))
        facts = {
            "clients": clients,
            "withheld": [*withheld, *large],
            "sum": found.which.digest,
        }
        arrays = {**answer.arrays, "contribution": words.view(np.int64)}
        return replace(answer, facts=facts, arrays=arrays)


def _whole(found: Any, what: str) -> int:
    if type(found) is not int:
        raise FuelsError(f"the server's {what} is not a whole number")
    return found
