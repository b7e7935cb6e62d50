"""What leaves a client in a run and what it reveals, for people who decide about data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuels.methods.registry import find_method
from fuels.privacy.noise import NONE
from fuels.report.facts import Summary, guaranteed, sums_sent
from fuels.report.style import number
from fuels.sharing.protection import OWN, SCALE

NO_GUARANTEE = (
    "Nothing here is differential privacy: whatever is sent reveals something about the data."
)


def revealed(summary: Summary, audit: Mapping[str, Any] | None = None) -> list[str]:
    """Sentences about a run; `audit` is the content of its audit.json, if there is one."""
    settings = summary["settings"]
    up = summary.get("per_client_and_round", {}).get("numbers_up", 0)
    amount = f" ({number(round(up))} numbers)" if up else ""
    said = [exchanged(str(summary["method"]), settings.get("privacy", {}), amount)]
    if settings["method"].startswith("fuels"):
        said += _prototypes(settings)
    sums: Mapping[str, Any] = (summary.get("sharing") or {}).get("sent", {})
    if sums:
        noised = ", to which noise is added before anybody sees them."
        exact = ". Whoever knows all other contributions to a sum knows the remaining one."
        said.append(
            f"For the experts, {sums_sent(sums)}, as parts of sums over at least"
            f" {settings['sharing']['min_clients']} clients"
            f"{noised if 'privacy' in summary else exact}"
        )
    if audit is not None:
        said.append(_measured(audit))
    if (guarantee := summary.get("privacy")) is not None:
        return [*said, *promised(guarantee)]
    return [
        *said,
        "The server also learns the names of the clients and the number of training periods; losses"
        " and validation errors only if the site's owner allows it.",
        "The series, the forecasts and the scale of a client's values are not sent.",
        NO_GUARANTEE,
    ]


def promised(guarantee: Mapping[str, Any]) -> list[str]:
    """What a run guarantees for its sums, and what not."""
    return [
        f"Guarantee: {guaranteed(guarantee)}.",
        *_alone(guarantee),
        f"Not covered: {'; '.join(guarantee['not_covered'])}.",
        "Every noised message is in the privacy ledger, written before it is sent.",
    ]


def _alone(guarantee: Mapping[str, Any]) -> list[str]:
    """What was released of each client by itself, with noise but in no sum."""
    released = {release["name"] for release in guarantee.get("releases", ())}
    named = {SCALE: "a histogram of its values", OWN: "its mean day"}
    found = [text for name, text in named.items() if name in released]
    if not found:
        return []
    groups = guarantee.get("groups", ())
    return [
        f"Each client released {' and '.join(found)} individually: with noise, but not in a sum."
        + (
            f" From these days, {len(groups)} groups of {' and '.join(map(str, groups))} similar"
            " clients were formed, each with a live mean."
            if len(groups) > 1
            else ""
        )
    ]


def exchanged(method: str, privacy: Mapping[str, Any], amount: str = "") -> str:
    """What a client sends and receives in training; `privacy`: that section of the settings."""
    found = find_method(method)
    if found.sends == "nothing":
        return "With this method, clients exchange nothing while the models are trained."
    if privacy.get("masked"):
        return (
            f"In each round, {found.sends}, of every client that trains, are added up{amount}; the"
            " sums of the sites are masked, so that the server sees only the total over at least"
            f" three sites. Each client receives {found.receives}."
        )
    return (
        f"{_rounds(privacy)}, every client that trains sends {found.sends}{amount}, and receives"
        f" {found.receives}."
    )


def _rounds(privacy: Mapping[str, Any]) -> str:
    first, every = privacy.get("first", 1), privacy.get("every", 1)
    if (first, every) == (1, 1):
        return "In each round"
    again = f", once every {every} rounds" if every > 1 else ""
    return f"From round {first} on{again}"


def _prototypes(settings: Mapping[str, Any]) -> list[str]:
    """What prototypes reveal, and the noise on them."""
    secret = settings.get("privacy", {}).get("secret", False)
    said = [
        "The server knows neither the initial model nor the order of a prototype's numbers, unless"
        " a site tells it the sites' secret."
        if secret
        else "The server knows the initial model, and can read most of a client's normalised daily"
        " profile from a prototype."
    ]
    noise = settings.get("options", {}).get("noise", NONE)
    if noise != NONE:
        said.append(f"Prototypes carry {noise} noise, which averages out over rounds and columns.")
    return said


def _measured(audit: Mapping[str, Any]) -> str:
    best = max(audit["reached"], key=lambda each: max(each["one"], each["every"]))
    r2 = max(best["one"], best["every"])
    return (
        f"An audit with {audit['clients']} clients and {audit['rounds']} rounds read"
        f" {100 * r2:.0f} % of the clients' deviations from the typical day (attacker:"
        f" {best['attacker']}; chance: {100 * audit['chance']:.0f} %), and recognised"
        f" {100 * audit['linked']:.0f} % of the clients in another run."
    )
