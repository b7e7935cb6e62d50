"""Downloads, uploads and reports as messages, and what a method declares to send.

Reading checks that a message has the form of what it claims to be; whether its numbers may be used
is checked by the guard.

Most declared arrays have one size whatever the data. Arrays that grow with the training part have
the same size at all sites only if their training parts are equally long, and reveal more than a
summary. Arrays that grow with the period are means over the periods of the training part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, text_list
from fuels.federation.flower.folders import Consent, RefusalError, SiteConfig
from fuels.federation.site import Report
from fuels.methods.base import Method, Sent
from fuels.methods.messages import Download, Upload
from fuels.storage.checkpoint import prefixed, unprefixed

FIGURES = ("val_mse", "val_mae")
SUMS = "sums"  # before the names of totals, see sum_server.py
Extra = tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]  # more facts and arrays of a request
NOTHING: Extra = ({}, {})
LARGEST = 1e6  # a training loss or an error that is accepted


def distinct_rounds(method: Method) -> tuple[int, ...]:
    """Rounds that declare everything which later rounds declare."""
    return (1, 2, method.facts.privacy.first)


def request(
    kind: str,
    run: str,
    number: int,
    site: str,
    asked: Sequence[str],
    download: Download,
    best_round: int = 0,
    extra: Extra = NOTHING,
) -> Envelope:
    """A request to a site; at the end with the round of the best model, if the server kept one."""
    best = {"best_round": best_round} if best_round else {}
    return Envelope(
        kind=kind,
        run=run,
        round=number,
        site=site,
        facts={"asked": list(asked), "having": list(download.clients), **best, **extra[0]},
        arrays={
            **prefixed("shared", download.shared),
            **prefixed("personal", download.personal),
            **extra[1],
        },
    )


def read_request(envelope: Envelope) -> tuple[tuple[str, ...], Download]:
    """The requested clients and what they receive."""
    asked = text_list(envelope.facts.get("asked"), "the list of clients asked for")
    download = Download(
        shared=unprefixed("shared", envelope.arrays),
        personal=unprefixed("personal", envelope.arrays),
        clients=text_list(envelope.facts.get("having"), "the list of clients that receive arrays"),
    )
    _only(envelope.arrays, ("shared/", "personal/", f"{SUMS}/"), ())
    return asked, download


def read_best_round(envelope: Envelope) -> int:
    """The round of the best model in a request; 0 if the server names none."""
    found = envelope.facts.get("best_round", 0)
    if type(found) is not int or not 0 <= found <= envelope.round:
        raise FuelsError("the best round is not a round of this run")
    return found


def reply(envelope: Envelope, upload: Upload | None, report: Report | None) -> Envelope:
    """A site's reply to a request, with its error figures."""
    clients = upload.clients if upload is not None else report.clients if report is not None else ()
    arrays: dict[str, NDArray[Any]] = {}
    if upload is not None:
        arrays |= prefixed("upload", upload.arrays)
        if upload.samples is not None:
            arrays["samples"] = upload.samples
    if report is not None:
        arrays |= prefixed("loss", report.losses)
        arrays |= {"val_mse": report.val_mse, "val_mae": report.val_mae}
    return replace(envelope, facts={"clients": list(clients)}, arrays=arrays)


def without_figures(envelope: Envelope) -> Envelope:
    """A reply without losses and validation errors, for a site that does not send them."""
    arrays = {
        name: array
        for name, array in envelope.arrays.items()
        if name not in FIGURES and not name.startswith("loss/")
    }
    return replace(envelope, arrays=arrays)


def read_upload(envelope: Envelope) -> Upload:
    """The upload in a reply."""
    _only(envelope.arrays, ("upload/", "loss/"), ("samples", *FIGURES))
    return Upload(
        clients=text_list(envelope.facts.get("clients"), "the list of clients"),
        arrays=unprefixed("upload", envelope.arrays),
        samples=envelope.arrays.get("samples"),
    )


def read_withheld(envelope: Envelope) -> tuple[str, ...]:
    """The clients whose upload a site withholds because it would be refused."""
    return text_list(envelope.facts.get("withheld", []), "the list of clients withheld")


def read_report(envelope: Envelope, declared: Collection[str]) -> Report | None:
    """The error figures in a reply, if there are any; only declared losses are accepted."""
    clients = text_list(envelope.facts.get("clients"), "the list of clients")
    if not any(name in envelope.arrays for name in FIGURES):
        return None
    losses = unprefixed("loss", envelope.arrays)
    for name in sorted(losses.keys() - set(declared)):
        raise FuelsError(f"undeclared loss {name!r}")
    figures = [envelope.arrays.get(name, np.empty(0)) for name in FIGURES]
    for values in (*losses.values(), *figures):
        if values.shape != (len(clients),) or values.dtype != np.float64:
            raise FuelsError("error figures do not match the clients")
    for values in losses.values():
        if not np.isfinite(values).all():
            raise FuelsError("a training loss is not finite: training diverged")
        if np.abs(values).max(initial=0.0) > LARGEST:
            raise FuelsError(f"a training loss exceeds {LARGEST:g}")
    for values in figures:  # NaN: no values to validate against
        if not ((values >= 0) & (values <= LARGEST) | np.isnan(values)).all():
            raise FuelsError(f"a validation error is not between 0 and {LARGEST:g}")
    return Report(clients, losses, *figures)


def _only(arrays: Mapping[str, Any], prefixes: tuple[str, ...], names: tuple[str, ...]) -> None:
    for name in arrays:
        if not name.startswith(prefixes) and name not in names:
            raise FuelsError(f"undeclared array {name!r}")


def sized(method: Method, periods: int) -> Method:
    """The method, sized for a site with this many training periods."""
    return type(method)(method.options, replace(method.facts, train_periods=periods))


def declared(method: Method, periods: int) -> tuple[dict[str, Sent], ...]:
    """What a site with this many training periods declares to upload, in round 1 and later."""
    there = sized(method, periods)
    return tuple(there.uploads(number) for number in distinct_rounds(there))


def agreed(method: Method, periods: Mapping[str, int]) -> Method:
    """The method in the size that the majority of sites has.

    `periods`: site: its training part. Most methods have the same size for all.
    """
    for count in sorted(set(periods.values()), reverse=True):
        alike = [site for site, other in periods.items() if _same(method, count, other)]
        if 2 * len(alike) > len(periods):
            return sized(method, count)
    stated = ", ".join(f"{site} {count}" for site, count in sorted(periods.items()))
    raise FuelsError(
        f"{method.title} with these options sends {', '.join(growing(method))}, whose size depends"
        " on the training part, and no length is shared by a majority of sites (periods:"
        f" {stated}); give all sites the same windows.split"
    )


def growing(method: Method) -> list[str]:
    """The uploaded arrays that grow with the training part."""
    return _resized(method, sized(method, 2 * method.facts.train_periods))


def of_a_period(method: Method) -> list[str]:
    """The uploaded arrays with a row per step of a period: means over the training periods."""
    sample = replace(method.facts.sample, period=2 * method.facts.period)
    return _resized(method, type(method)(method.options, replace(method.facts, sample=sample)))


def _resized(method: Method, other: Method) -> list[str]:
    """The uploaded arrays whose shape differs between two sizes of the method."""
    numbers = distinct_rounds(method)
    pairs = [(method.uploads(number), other.uploads(number)) for number in numbers]
    return sorted({name for a, b in pairs for name in a if a[name].shape != b[name].shape})


def _same(method: Method, count: int, other: int) -> bool:
    try:
        return declared(method, count) == declared(method, other)
    except FuelsError:  # the method does not support this length
        return False


def need_equal(method: Method, periods: Mapping[str, int]) -> None:
    """Refuse sites whose uploads would differ in size from those of this run."""
    own = method.facts.train_periods
    for site, count in periods.items():
        if declared(method, count) != declared(method, own):
            raise FuelsError(
                f"the training part of site {site} has {count} periods with samples, but this run"
                f" has {own}: {method.title} with these options sends"
                f" {', '.join(growing(method))}, whose size depends on it; give all sites the same"
                " windows.split"
            )


def check_consent(method: str, config: SiteConfig) -> None:
    """Refuse a method that this site does not consent to."""
    if method not in config.consent.methods:
        allowed = ", ".join(config.consent.methods)
        raise RefusalError(f"site {config.name} does not consent to {method} (only {allowed})")


def check_declaration(method: Method, consent: Consent, number: int) -> None:
    """Refuse a method that declares an upload which this site does not consent to."""
    rounds = (*distinct_rounds(method), number)
    sent = {name: sent for n in rounds for name, sent in method.uploads(n).items()}
    if sent and not consent.unmasked and not method.facts.privacy.masked:
        raise RefusalError(
            f"{method.title} with these settings sends {next(iter(sent))} without masks; this site"
            " demands masked uploads (consent.unmasked = false in its site.toml)"
        )
    if consent.raw_derived:
        return
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
