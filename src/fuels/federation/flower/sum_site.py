"""A site's side of the sums of a run: what it offers, what it adds, and what it receives.

Before training, the server asks which steps a site has data for and what it consents to, and then
for its masked contribution to each sum. The site checks every sum (sharing/secure_sums.py). It
refuses with a reply that states the reason, so that the server skips the sum at once and does not
ask again. The last request of the run brings all totals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.experts.history import history_of
from fuels.experts.run_sums import (
    LIVE_MEAN,
    SETTINGS,
    STATISTICS,
    ReceivedSums,
    Steps,
    live_words,
    parts_of,
    received_mean,
    received_statistics,
    shape_of,
    statistics_words,
    steps_of,
)
from fuels.federation.codec import Envelope, text_list
from fuels.federation.flower.folders import Consent, SiteConfig, SiteFolder, log
from fuels.federation.flower.messages import SUMS
from fuels.federation.flower.records import SiteRecords
from fuels.federation.flower.sum_keys import secure_sums
from fuels.runs.build import Job
from fuels.sharing.answers import Span
from fuels.sharing.fixed_point import Words
from fuels.sharing.live_mean import NUMBERS, identity
from fuels.sharing.masks import SumId
from fuels.sharing.roster import Roster, read_roster
from fuels.sharing.secure_sums import SecureSums
from fuels.storage.checkpoint import unprefixed


def consents(consent: Consent) -> dict[str, bool]:
    """The sums that a site takes part in, by name."""
    return {LIVE_MEAN: consent.live_mean, STATISTICS: consent.sums}


def refuse_exact(config: SiteConfig) -> None:
    """Refuse sums without noise at a site that demands noise."""
    if config.consent.epsilon:
        raise FuelsError(
            f"site {config.name} takes part only in sums with noise (consent.epsilon ="
            f" {config.consent.epsilon:g} in its site.toml), as with --preset private"
        )


def answer_sum(
    folder: SiteFolder, config: SiteConfig, job: Job, request: Envelope, records: SiteRecords
) -> Envelope:
    """The reply to a request about sums: an offer, a contribution, or the reason for none."""
    own = replace(request, arrays={})
    name = request.facts.get("name", "")
    try:
        refuse_exact(config)
        if not name:
            taken = [name for name, given in consents(config.consent).items() if given]
            offer = {"steps": steps_of(job.dataset).facts(), "consent": taken}
            return replace(own, facts={"name": name, "offer": offer})
        words, asked = _contribution(folder, config, job, request)
    except FuelsError as error:  # these errors quote no data
        log.error("%s", error)
        records.refused(str(error))
        return replace(own, facts={"name": name, "refused": str(error)})
    records.audit.add("sum", run=request.run, name=name, step=asked.step, sites=list(asked.sites))
    return replace(own, facts={"name": name}, arrays={"words": words.view(np.int64)})


def _contribution(
    folder: SiteFolder, config: SiteConfig, job: Job, request: Envelope
) -> tuple[Words, SumId]:
    facts, settings = request.facts, job.settings
    name = facts.get("name")
    if name not in SETTINGS:
        raise FuelsError("the server asks for a sum that this version does not know")
    if not consents(config.consent)[name]:
        key = "live_mean" if name == LIVE_MEAN else "sums"
        raise FuelsError(
            f"site {config.name} does not consent to the sum {name} (consent.{key} in its"
            " site.toml)"
        )
    steps, live = Steps.from_facts(facts.get("steps")), facts.get("live") is True
    horizon = settings.sample.horizon
    moment = steps.time(steps.count if name == LIVE_MEAN else steps.end)
    shape = shape_of(name, steps, horizon, live)
    sums, roster, asked = asked_sum(folder, config, job, request, name, moment, shape)
    dataset, history = job.dataset, history_of(job.dataset)
    clients = dataset.ids, dataset.mean, dataset.std
    if name == LIVE_MEAN:
        spans = [(steps.live.start, steps.live.stop)]
        which = identity(*clients)
    else:  # of two runs whose last steps differ, a part may end at the same step
        ends = sorted({part.last for part in parts_of(steps, horizon, live)})
        spans = [(end, end + 1) for end in ends]
        which = identity(*clients, of=STATISTICS)
    also = [Span(which, steps.time(first), steps.time(last)) for first, last in spans]

    def contribution() -> Words:
        if name == LIVE_MEAN:
            return live_words(history, steps, len(asked.sites))
        own = history
        if live:
            mean = received_mean(
                job.dataset,
                steps,
                _numbers(request, "live", (steps.count, NUMBERS)),
                config.name in text_list(facts.get("live sites"), "the list of sites"),
            )
            own = replace(history, live=mean.seen(
                job.dataset.ids, history.start, history.length, settings.sharing.min_clients
            ))  # fmt: skip
        return statistics_words(own, steps, horizon, live, len(asked.sites))

    return sums.answer(asked, roster, contribution, also=also), asked


def need_clients(roster: Roster, config: SiteConfig, clients: int) -> None:
    """Refuse a roster that claims more clients than this site has."""
    own = roster.members.get(config.name)
    if own is not None and clients < own.clients:
        raise FuelsError(
            f"the founder's roster has {own.clients} clients for site {config.name}, which has"
            " fewer; the founder must correct it with fuels federation roster"
        )


def asked_sum(
    folder: SiteFolder,
    config: SiteConfig,
    job: Job,
    request: Envelope,
    name: str,
    moment: int,
    shape: tuple[int, ...],
) -> tuple[SecureSums, bytes, SumId]:
    """The sum that a request asks for, with the roster that it brings; refuses a wrong roster."""
    roster = str(request.facts.get("roster", "")).encode()
    least, clients = job.settings.sharing.min_clients, len(job.dataset.ids)
    sums, serial = certified(folder, config, roster, clients, least)
    sites = text_list(request.facts.get("sites"), "the list of sites")
    asked = SumId(config.federation, serial, request.run, name, moment, sites, shape)
    return sums, roster, asked


def certified(
    folder: SiteFolder, config: SiteConfig, roster: bytes, clients: int, min_clients: int
) -> tuple[SecureSums, int]:
    """A site's side of a sum over its `clients`, and the serial of the roster that came with it.

    Refuses a roster that the founder did not sign, or that claims more clients than there are.
    """
    sums = secure_sums(folder, config, min_clients)
    members = read_roster(roster, sums.ca, config.federation)
    need_clients(members, config, clients)
    return sums, members.serial


def received_sums(config: SiteConfig, job: Job, request: Envelope) -> ReceivedSums | None:
    """The totals in the last request of a run; None if the run asks for no sums."""
    chosen = job.settings.sharing
    wanted = [name for name, key in SETTINGS.items() if getattr(chosen, key)]
    if not wanted or not job.settings.mixture.on:
        return None
    facts = request.facts.get(SUMS)
    notes = {SETTINGS[name]: "the server sent no sums" for name in wanted}
    if not isinstance(facts, dict):
        return ReceivedSums(notes=notes, min_clients=chosen.min_clients)
    try:
        stated = {str(name): str(reason)[:300] for name, reason in facts["notes"].items()}
        notes = {SETTINGS[name]: reason for name, reason in stated.items() if name in SETTINGS}
        mean = statistics = None
        sets, live = facts["sets"], facts.get("live") is True
        steps = Steps.from_facts(facts["steps"]) if sets else None
        if steps is not None and LIVE_MEAN in sets and chosen.live_mean:
            total = _numbers(request, "live", (steps.count, NUMBERS))
            inside = config.name in text_list(sets[LIVE_MEAN], "the list of sites")
            mean = received_mean(job.dataset, steps, total, inside)
        if steps is not None and STATISTICS in sets and chosen.statistics:
            horizon = job.settings.sample.horizon
            shape = shape_of(STATISTICS, steps, horizon, live)
            total = _numbers(request, "statistics", shape)
            statistics = received_statistics(steps, horizon, live, total)
    except (FuelsError, KeyError, AttributeError, TypeError) as error:
        log.error("the sums that the server sent cannot be used: %s", error)
        notes = {SETTINGS[name]: "what the server sent cannot be used" for name in wanted}
        return ReceivedSums(notes=notes, min_clients=chosen.min_clients)
    return ReceivedSums(mean, statistics, notes, chosen.min_clients)


def _numbers(request: Envelope, name: str, shape: tuple[int, ...]) -> Floats:
    """An array of totals in a message."""
    found: NDArray[Any] = unprefixed(SUMS, request.arrays).get(name, np.empty(0))
    if found.shape != shape or found.dtype != np.float64 or not np.isfinite(found).all():
        raise FuelsError(f"the server's {name} totals do not have the form of the sum")
    return found
