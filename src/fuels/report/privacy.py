"""What leaves a client in a run and who sees it, as sentences for people who decide about data."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from fuels.config import Sharing
from fuels.methods.base import MODEL, Method
from fuels.methods.fuels import Fuels
from fuels.privacy.noise import NONE

GUIDE = "docs/explanation/privacy.md"


def statement(
    method: Method, rounds: int, sharing: Sharing, audit: Mapping[str, Any] | None = None
) -> list[str]:
    """What a run reveals, and what is not guaranteed; `audit`: the content of its audit.json."""
    sent = {n: method.uploads(n) for n in range(1, rounds + 1)}
    busy = [n for n, arrays in sent.items() if arrays]
    if not busy:
        said = ["Training sends nothing: values, models and forecasts stay with each client."]
    else:
        names = sorted({name for arrays in sent.values() for name in arrays})
        numbers = sum(prod(each.shape) for arrays in sent.values() for each in arrays.values())
        said = [
            f"In {len(busy)} of {rounds} rounds each client sends {', '.join(names)}:"
            f" {numbers:,} numbers in all. The server sees them for each client; the other clients"
            f" get means or sums over several.",
            "Values of the series and forecasts stay with each client"
            + ("." if set(names) & set(MODEL) else ", and so do models."),
        ]
    if busy and isinstance(method, Fuels):
        said += protections(method)
    if sharing.statistics or sharing.live_mean:
        said.append(
            f"Sums over at least {sharing.min_clients} clients are shared. Whoever knows all other"
            " contributions to a sum knows the remaining one."
        )
    if audit is not None:
        said.append(measured(audit))
    if busy or sharing.statistics or sharing.live_mean:
        said.append(f"Nothing here is differential privacy; {GUIDE} says what can be inferred.")
    return said


def protections(method: Fuels) -> list[str]:
    """The sentence about a secret, and the one about noise."""
    said = [
        "The server knows neither the initial model nor the order of a prototype's numbers, unless"
        " a site tells it the sites' secret."
        if method.facts.privacy.secret
        else "The server knows the initial model, and can read the daily profile from a prototype."
    ]
    options = method.options
    if options.noise != NONE:
        said.append(
            f"Prototypes carry {options.noise} noise of {options.noise_scale:g}. It averages out"
            " over rounds and columns."
        )
    return said


def measured(audit: Mapping[str, Any]) -> str:
    """The sentence about an audit."""
    best = max(audit["reached"], key=lambda each: max(each["one"], each["every"]))
    r2 = max(best["one"], best["every"])
    return (
        f"An audit with {audit['clients']} clients and {audit['rounds']} rounds read"
        f" {100 * r2:.0f} % of the clients' deviations from the typical day (attacker:"
        f" {best['attacker']}; chance: {100 * audit['chance']:.0f} %), and recognised"
        f" {100 * audit['linked']:.0f} % of the clients in another run."
    )
