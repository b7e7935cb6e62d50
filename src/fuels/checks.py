"""Checks of settings: what cannot work is refused in one sentence before anything runs."""

from __future__ import annotations

import math

from fuels.config import (
    AGGREGATIONS,
    BOUNDS,
    ENGINES,
    NO_BOUND,
    Defence,
    Engine,
    Mixture,
    Settings,
    nearest,
)
from fuels.errors import FuelsError


def check(settings: Settings) -> None:
    """Refuse settings that cannot work."""
    windows, training = settings.windows, settings.training
    positive = {
        "windows.period": windows.period - 1,
        "windows.closeness": windows.closeness,
        "windows.periodicity": windows.periodicity,
        "windows.horizon": windows.horizon,
        "model.hidden": settings.model.hidden,
        "training.rounds": training.rounds,
        "training.local_epochs": training.local_epochs,
    }
    for key, value in positive.items():
        if value < 1:
            raise FuelsError(f"{key} must be at least {2 if key == 'windows.period' else 1}")
    for key, count in {
        "data.clients": settings.data.clients,
        "windows.max_gap": windows.max_gap,
        "training.patience": training.patience,
        "sharing.noise": settings.sharing.noise,
        "seed": settings.seed,
    }.items():
        if not count >= 0:
            raise FuelsError(f"{key} must not be negative; it is {count}")
    if training.batch not in (0, windows.period):
        raise FuelsError(
            f"training.batch is {training.batch} but the period is {windows.period}: a batch must"
            " be one period, so that its row b is phase b; omit training.batch or set it to that"
        )
    if not training.learning_rate >= 0:
        raise FuelsError(
            f"training.learning_rate must be positive, or 0 for the method's default; it is"
            f" {training.learning_rate}"
        )
    if not 0 <= training.selection <= 1:
        raise FuelsError(
            f"training.selection must be a share of the clients, at most 1, or 0 for the method's"
            f" default; it is {training.selection}"
        )
    for key, choice, choices in (
        ("training.optimiser", training.optimiser or "adam", ("adam", "sgd")),
        ("training.keep", training.keep, ("best", "last")),
        ("model.head", settings.model.head, ("concat", "sum")),
    ):
        if choice not in choices:
            raise FuelsError(f"{key} must be {' or '.join(choices)}, not {choice}")
    for key, share in (("training.momentum", training.momentum), ("windows.doubt", windows.doubt)):
        if not 0 <= share < 1:
            raise FuelsError(f"{key} must be at least 0 and below 1; it is {share}")
    levels = settings.mixture.levels
    if not levels or any(not 0 < level < 100 for level in levels):
        raise FuelsError(
            "mixture.levels must be one or more percentages between 0 and 100, not"
            f" {', '.join(map(str, levels)) or 'none'}"
        )
    lowest, highest = (bound(settings.mixture, name) for name in BOUNDS)
    if lowest is not None and highest is not None and lowest >= highest:
        raise FuelsError(
            f"mixture.at_least must be below mixture.at_most, but they are {lowest:g} and"
            f" {highest:g}"
        )
    if not settings.mixture.on and (lowest is not None or highest is not None):
        raise FuelsError(
            "mixture.at_least and mixture.at_most confine the forecasts of the mixture, which is"
            " off: use --preset best"
        )
    if settings.sharing.min_clients < 2:
        raise FuelsError(
            f"sharing.min_clients must be at least 2; it is {settings.sharing.min_clients}, but a"
            " sum over one client is that client's value"
        )
    check_defence(settings.defence)
    late_joiners(training.late)
    newcomer_share(settings.data.newcomers)


def check_defence(defence: Defence) -> None:
    """Refuse defences that cannot work, in words."""
    if defence.aggregation not in AGGREGATIONS:
        raise FuelsError(
            f"unknown defence.aggregation {defence.aggregation}"
            f"{nearest(defence.aggregation, AGGREGATIONS)}"
        )
    if not 0 <= defence.tolerated < 0.5:
        raise FuelsError(
            "defence.tolerated is a share of the clients, at least 0 and below 0.5; it is"
            f" {defence.tolerated}"
        )
    if not 0 < defence.farthest <= 100:
        raise FuelsError(
            f"defence.farthest is a percentile above 0, at most 100; it is {defence.farthest}"
        )
    for name in ("clip", "admission", "trials", "refusals"):
        if getattr(defence, name) < 0:
            raise FuelsError(f"defence.{name} must not be negative, it is {getattr(defence, name)}")


def check_engine(engine: Engine) -> None:
    """Refuse an engine that cannot work."""
    if engine.threads < 0:
        raise FuelsError(f"engine.threads must not be negative; it is {engine.threads}")
    if engine.transport not in ENGINES:
        raise FuelsError(f"unknown engine {engine.transport}{nearest(engine.transport, ENGINES)}")
    if engine.transport == "local" and (engine.sites != 1 or engine.address):
        raise FuelsError("--sites and --address need --engine ray")
    if engine.transport == "ray" and engine.device != "cpu":
        raise FuelsError("--engine ray trains on CPUs; omit --device, or use --engine local")


def bound(mixture: Mixture, name: str) -> float | None:
    """`at_least` or `at_most` as a number; None if there is none, or it is yet to be detected."""
    text = getattr(mixture, name).strip()
    if text in ("", NO_BOUND):
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FuelsError(f"mixture.{name} must be a number or {NO_BOUND}, not {text!r}")
    return value


def late_joiners(text: str) -> tuple[float, int]:
    """`SHARE@ROUND` as numbers; an empty text means that no client is late."""
    found = _share_at(text, least=2) if text else (0.0, 1)
    if found is None:
        raise FuelsError(
            f"training.late must be SHARE@ROUND with a round from 2 on, such as 0.2@10 for a fifth"
            f" of the clients joining in round 10; it is {text!r}"
        )
    return found


def newcomer_share(text: str) -> tuple[float, int]:
    """`SHARE@PERIODS` as numbers; an empty text means that no client is new."""
    found = _share_at(text, least=1) if text else (0.0, 0)
    if found is None or (text and not found[0]):
        raise FuelsError(
            f"data.newcomers must be SHARE@PERIODS, such as 0.5@7 for half of the clients with only"
            f" the last 7 periods of training; it is {text!r}"
        )
    return found


def _share_at(text: str, least: int) -> tuple[float, int] | None:
    """`SHARE@NUMBER`, with a share below 1 and a number from `least` on; None for another text."""
    share, _, number = text.partition("@")
    try:
        found = float(share), int(number)
    except ValueError:
        return None
    return found if 0 <= found[0] < 1 and found[1] >= least else None
