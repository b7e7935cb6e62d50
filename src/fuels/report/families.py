"""Experts by family: what kind of forecaster a mixture trusts, and what that means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fuels.arrays import Floats

PERSONAL, SHARED, REGRESSION, SIMPLE = (
    "personal model",
    "experts that use other clients' sums",
    "the client's own regressions",
    "simple rules",
)
FAMILIES = (PERSONAL, SHARED, REGRESSION, SIMPLE)
MEANING = {
    PERSONAL: "the model that the federation trains",
    SHARED: "regressions that also use sums over all clients",
    REGRESSION: "regressions on the client's own past",
    SIMPLE: "the last value, the same time a period or a week ago, a trend or smoothing",
}
_SHARED = ("pooled ridge", "shrunk ridge")


def by_client(picks: Iterable[tuple[str, int]]) -> dict[int, str]:
    """The roles of each client, joined: one may be best and median."""
    roles: dict[int, list[str]] = {}
    for role, client in picks:
        roles.setdefault(int(client), []).append(role)
    return {client: ", ".join(own) for client, own in roles.items()}


def family(name: str, model: str) -> str:
    """The family of an expert; `model` is the personal model's name among them."""
    if name.removesuffix(", inputs") == model:
        return PERSONAL
    if name.startswith(_SHARED) or name.endswith("live mean"):
        return SHARED
    return REGRESSION if name.startswith("ridge") else SIMPLE


def by_family(weights: Floats, names: Sequence[str], model: str) -> dict[str, Floats]:
    """Weights [..., expert] summed over each family that has an expert."""
    families = [family(name, model) for name in names]
    return {
        one: weights[..., [each == one for each in families]].sum(axis=-1)
        for one in FAMILIES
        if one in families
    }


def shares(weights: Mapping[str, float], model: str) -> dict[str, float]:
    """The share of each family in the mean weights of experts, by name."""
    total = sum(weights.values()) or 1.0
    found: dict[str, float] = {}
    for name, weight in weights.items():
        one = family(name, model)
        found[one] = found.get(one, 0.0) + weight / total
    return {one: found[one] for one in FAMILIES if one in found}
