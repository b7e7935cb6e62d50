"""A site's side of sums with noise: its ledger, what it releases, and what it receives.

The site computes sensitivities and noise itself, from the run's settings and the steps that the
server names. Before its words leave it, they are in state/privacy.jsonl, with their noise, and on
disk; asked again, it sends the same. A release that would exceed what its site.toml allows for all
runs together, or what the run allows for itself, is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fuels.arrays import Floats
from fuels.config import Privacy
from fuels.errors import FuelsError
from fuels.experts.history import history_of
from fuels.experts.private_releases import (
    LEAST_PERIODS,
    declared_for,
    scale_from,
    scale_release,
    sums_of,
)
from fuels.experts.private_run_sums import (
    FederatedExperts,
    Plan,
    ReceivedPrivateSums,
    on_common_steps,
)
from fuels.experts.run_sums import SETTINGS, ReceivedSums, Steps, steps_of
from fuels.federation.codec import Envelope
from fuels.federation.flower.folders import Consent, SiteConfig, SiteFolder, log
from fuels.federation.flower.messages import SUMS
from fuels.federation.flower.private_messages import read_found, title
from fuels.federation.flower.records import SiteRecords
from fuels.federation.flower.sum_site import answer_sum, asked_sum, received_sums
from fuels.privacy.accountant import TOLERANCE, loss_for
from fuels.privacy.ledger import Budget, Ledger, Release
from fuels.privacy.sensitivity import relation_of, unit_of
from fuels.runs.build import Job
from fuels.sharing import private_statistics as private
from fuels.sharing.fixed_point import Words
from fuels.sharing.private_sums import PrivateSums
from fuels.sharing.protection import DAY, LEDGER, MEAN, SCALE, STATISTICS, Protection, budget_of
from fuels.storage.checkpoint import unprefixed


def consents(consent: Consent) -> dict[str, bool]:
    """The noised sums that a site takes part in, by name."""
    either = consent.sums or consent.live_mean
    return {DAY: either, MEAN: consent.live_mean, STATISTICS: consent.sums}


def ledger_of(folder: SiteFolder, consent: Consent) -> Ledger:
    """The site's ledger, for all its runs."""
    unit, relation = unit_of(consent.unit), relation_of(consent.relation)
    budget = Budget(consent.largest_epsilon, consent.delta, unit, relation)
    owner = f"the ledger of site {folder.config.name}"
    return Ledger(budget, folder.state / LEDGER, owner)


def ledger_for(folder: SiteFolder, config: SiteConfig, privacy: Privacy) -> Ledger:
    """The site's ledger; refuses a run whose guarantee is of another kind than the site's."""
    consent = config.consent
    for name in ("delta", "unit", "relation"):
        wanted, own = getattr(privacy, name), getattr(consent, name)
        if wanted != own:
            raise FuelsError(
                f"the run's guarantee has privacy.{name} = {wanted}, and site {config.name} demands"
                f" {own} (consent.{name} in its site.toml)"
            )
    file = folder.state / LEDGER
    empty = not file.exists() or file.stat().st_size == 0
    if empty and any(folder.runs.glob(f"*/{LEDGER}")):
        raise FuelsError(
            f"the privacy ledger of site {config.name} (state/{LEDGER}) is missing or empty, so"
            " what it has released is not known: restore it from a backup"
        )
    folder.state.mkdir(parents=True, exist_ok=True)
    return ledger_of(folder, consent)


def answer_sums(
    folder: SiteFolder, config: SiteConfig, job: Job, request: Envelope, records: SiteRecords
) -> Envelope:
    """The reply to a request about sums, with noise or without."""
    answered = answer_private_sum if job.settings.privacy.epsilon else answer_sum
    return answered(folder, config, job, request, records)


def sums_received(
    folder: SiteFolder, config: SiteConfig, job: Job, request: Envelope
) -> ReceivedSums | None:
    """The totals in the last request of a run; None if the run asks for no sums."""
    if job.settings.privacy.epsilon:
        return received_private_sums(folder, config, job, request)
    return received_sums(config, job, request)


def answer_private_sum(
    folder: SiteFolder, config: SiteConfig, job: Job, request: Envelope, records: SiteRecords
) -> Envelope:
    """The reply about noised sums: an offer, a contribution, or the reason for none."""
    own, name = replace(request, arrays={}), request.facts.get("name", "")
    about = {key: request.facts[key] for key in ("name", "first") if key in request.facts}
    try:
        if not name:
            offer = _offer(folder, config, job, request.run)
            return replace(own, facts={**about, "offer": offer})
        release, words, contributing = _contribution(folder, config, job, request)
    except FuelsError as error:  # these errors quote no data
        log.error("%s", error)
        records.refused(str(error))
        return replace(own, facts={**about, "refused": str(error)})
    facts = {"run": request.run, "name": release.name, "step": release.last, "noise": release.sigma}
    records.audit.add("noised sum", **facts, sites=list(request.facts["sites"]))
    reply = {**about, "clients": contributing}
    return replace(own, facts=reply, arrays={"words": words.view(np.int64)})


def _offer(folder: SiteFolder, config: SiteConfig, job: Job, run: str) -> dict[str, Any]:
    """The steps of the site's data, and the sums it takes part in; refused if not affordable."""
    steps, settings = steps_of(job.dataset), job.settings
    ledger = ledger_for(folder, config, job.settings.privacy)
    kept = Protection(settings.privacy, ledger, run, settings.sample.horizon)
    kept.refuse_spent(settings.sharing, steps.start, steps.time(steps.count))
    declared_for(settings.privacy, job.dataset.ids, folder.path)  # refuses a file that does not fit
    taken = [name for name, given in consents(config.consent).items() if given]
    return {"steps": steps.facts(), "consent": taken}


def plan_of(job: Job, run: str, steps: Steps, ledger: Ledger) -> Plan:
    settings = job.settings
    horizon = settings.sample.horizon
    parties = steps.step, ledger, run
    sums = sums_of(settings.privacy, settings.sharing, horizon, *parties)
    return Plan(sums, steps, settings.sharing, horizon)


def _contribution(
    folder: SiteFolder, config: SiteConfig, job: Job, request: Envelope
) -> tuple[Release, Words, int]:
    """A release, the site's masked words for it, and how many of its clients contribute."""
    facts, privacy = request.facts, job.settings.privacy
    steps = Steps.from_facts(facts.get("steps"))
    ledger = ledger_for(folder, config, job.settings.privacy)
    plan = plan_of(job, request.run, steps, ledger)
    found = read_found(plan, facts, unprefixed(SUMS, request.arrays))
    asked_for = facts.get("name"), facts.get("first")
    release = next((r for r in plan.releases(found) if (r.name, r.first) == asked_for), None)
    if release is None:
        raise FuelsError("the server asks for a sum that this run does not have")
    kind = release.name.partition(",")[0]
    if not consents(config.consent)[kind]:
        key = "sums" if kind == STATISTICS else "live_mean"
        raise FuelsError(
            f"site {config.name} does not consent to the sum {kind} (consent.{key} in its"
            " site.toml)"
        )
    sums, roster, asked = asked_sum(
        folder, config, job, request, title(release, request.run), release.last, release.shape
    )
    sites = list(asked.sites)

    def words() -> Words:
        scale, values = _scaled(folder, plan, job)
        refuse_more_than_the_run(plan.sums, release, privacy.epsilon, privacy.delta)
        entry = ledger.release(
            release,
            plan.parts(release, found, scale.apply(values), job.dataset.calendar),
            {"sites": sites},
            sites=len(sites),
            colluding=privacy.colluding,
        )
        if entry.about["sites"] != sites:
            raise FuelsError(f"{asked}: its noise was drawn for other sites")
        return entry.message.reshape(-1).view(np.uint64)

    answer = sums.answer(asked, roster, words)
    return release, answer, int(_scaled(folder, plan, job)[0].member.sum())


def _scaled(folder: SiteFolder, plan: Plan, job: Job) -> tuple[private.Scale, Floats]:
    """The scale of each client, as declared or from its noised histogram, and its values.

    The histograms count as released, as on one machine, although they stay in the ledger.
    """
    dataset, steps, ids = job.dataset, plan.steps, job.dataset.ids
    normal = on_common_steps(history_of(dataset), steps)
    values = normal * dataset.std[:, None] + dataset.mean[:, None]
    least = LEAST_PERIODS * steps.period
    known = declared_for(job.settings.privacy, ids, folder.path) or scale_from(
        plan.sums, ids, least
    )
    if known is None:
        span = steps.start, steps.time(steps.end)
        release = scale_release(plan.sums, span, steps.end, len(ids))
        counts = np.stack([private.histogram(own) for own in values[:, : steps.end]])
        plan.sums.ledger.release(release, [counts], {"clients": list(ids)})
        known = scale_from(plan.sums, ids, least)
        assert known is not None
    return known, values


def refuse_more_than_the_run(
    sums: PrivateSums, release: Release, epsilon: float, delta: float
) -> None:
    """Refuse what would exceed the run's own epsilon, such as a sum over other steps."""
    ledger, run = sums.ledger, sums.run
    own = [entry.release for entry in ledger.entries.values() if entry.release.run == run]
    if release.key in ledger.entries:
        return
    if ledger.loss_of([*own, release]) > loss_for(epsilon, delta) * (1 + TOLERANCE):
        raise FuelsError(
            f"the server asks for more than the epsilon of {epsilon:g} that the run announces"
        )


def received_private_sums(
    folder: SiteFolder, config: SiteConfig, job: Job, request: Envelope
) -> ReceivedPrivateSums:
    """The totals in the last request of a run."""
    settings, dataset = job.settings, job.dataset
    least = settings.sharing.min_clients
    wanted = [key for key in SETTINGS.values() if getattr(settings.sharing, key)]
    facts = request.facts.get(SUMS)
    if not isinstance(facts, dict):
        notes = dict.fromkeys(wanted, "the server sent no sums")
        return ReceivedPrivateSums(notes=notes, min_clients=least)
    try:
        notes = {str(name): str(reason)[:300] for name, reason in facts["notes"].items()}
        if not facts["found"]:
            return ReceivedPrivateSums(notes=notes, min_clients=least)
        steps = Steps.from_facts(facts["steps"])
        own = ledger_for(folder, config, job.settings.privacy)
        own.create()  # a newcomer has released nothing: that is known, too
        plan = plan_of(job, request.run, steps, own)
        totals = Ledger(budget_of(settings.privacy))
        totals.keep(own.find(request.run, SCALE))
        totals.keep(read_found(plan, facts, unprefixed(SUMS, request.arrays)))
        experts = FederatedExperts.received_from(
            settings.privacy,
            request.run,
            settings.sample.horizon,
            steps,
            totals,
            min_clients=least,
            trained=history_of(dataset).times(dataset.split.train, dataset.split.train + 1)[0],
            mean=dataset.mean,
            std=dataset.std,
            spent=own.epsilon,
        )
    except (FuelsError, KeyError, AttributeError, TypeError) as error:
        log.error("the sums that the server sent cannot be used: %s", error)
        notes = dict.fromkeys(wanted, "what the server sent cannot be used")
        return ReceivedPrivateSums(notes=notes, min_clients=least)
    return ReceivedPrivateSums(notes=notes, min_clients=least, private=experts)
