"""What sites send in a round, checked one answer at a time before it is used.

Each answer is let in or refused by itself: whatever is wrong with one has a reason, is counted, and
changes nothing for the others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope
from fuels.federation.flower.letters import read_report, read_upload, read_withheld
from fuels.federation.flower.mail import Letter, failed, reading
from fuels.federation.flower.members import Members
from fuels.federation.guard import Gate, refusals
from fuels.federation.refusals import Refusals
from fuels.federation.site import Report
from fuels.federation.transport import Failure, Reply
from fuels.methods.base import Method
from fuels.methods.messages import Upload


@dataclass(frozen=True)
class Intake:
    """Whom answers may come from, what was used already, and the count of refusals."""

    gate: Gate
    members: Members
    refused: Refusals

    def upload(
        self, method: Method, sent: Letter, envelope: Envelope, number: int
    ) -> tuple[Reply | None, list[Failure]]:
        """The upload in an answer, if the gate lets it in and something in it can be used.

        `number`: the round at work. Which of its clients are refused is for the loop to say; an
        upload without any good one does not count towards the quorum.
        """
        site, most = sent.site, self.members.periods[sent.site] * method.facts.period
        try:
            reason = self.gate.refusal(envelope, site, "train", number, sent.number)
            if reason:
                raise FuelsError(reason)
            upload = reading(lambda: read_upload(envelope))
            withheld = set(reading(lambda: read_withheld(envelope)))
            _need_same_arrays(method, sent.number, number)
            reading(lambda: _need_one_good_client(method, upload, sent, most))
        except FuelsError as error:
            return None, [self.refused.add(site, number, "upload", str(error))]
        failures = [
            failed(site, number, f"it withholds client {client}; its own log says why")
            for client in sent.asked
            if client in withheld
        ]
        report = self.report(sent, envelope, method.losses)
        if isinstance(report, Failure):
            failures.append(report)
            report = None
        self.gate.use(envelope)
        return Reply(site, upload, report, sent.asked, most, sent.number), failures

    def report(
        self, sent: Letter, envelope: Envelope, declared: Collection[str] = ()
    ) -> Report | Failure | None:
        """The error figures in an answer, None without any, or why they are refused.

        `declared`: the losses in it; whoever judges a model has none.
        """
        try:
            report = reading(lambda: read_report(envelope, declared))
            if report is not None and not set(report.clients) <= set(sent.asked):
                raise FuelsError("they speak of clients that were not asked")
        except FuelsError as error:
            return self.refused.add(sent.site, sent.number, "error figures", str(error))
        return report


def _need_same_arrays(method: Method, asked: int, number: int) -> None:
    """A late upload joins those of the present round only if it is made of the same arrays."""
    then, now = (
        ({name: sent.shape for name, sent in method.uploads(n).items()}, method.counts(n))
        for n in (asked, number)
    )
    if then != now:
        raise FuelsError(
            f"late: it is of round {asked}, whose arrays are not those of round {number}"
        )


def _need_one_good_client(method: Method, upload: Upload, sent: Letter, most: int) -> None:
    declared = method.uploads(sent.number)  # as its own round has it
    counted = method.counts(sent.number)
    reasons, whole = refusals(upload, declared, set(sent.asked), counted=counted, most_samples=most)
    if whole:
        raise FuelsError(whole)
    if len(reasons) == len(upload.clients):
        raise FuelsError("; ".join(f"client {c!r}: {why}" for c, why in reasons.items()))
