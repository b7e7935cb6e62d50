"""Resolved settings: checked, with every value that a run uses filled in.

An entry point (a command, a Forecaster, a study, a federation) calls `resolve` once. The code
behind it takes `ResolvedSettings`, so nothing has to be checked or completed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fuels.config import (
    AGGREGATIONS,
    KEEP,
    MISSING,
    VOTES,
    Defence,
    Privacy,
    Settings,
    late_joiners,
    merge,
    nearest,
    newcomer_share,
    to_dict,
)
from fuels.data.sample import Sample, sample_of
from fuels.data.screening import drops_implausible
from fuels.errors import FuelsError
from fuels.experts.limits import check_limits
from fuels.methods.base import Options
from fuels.methods.fuels import Fuels
from fuels.methods.registry import METHODS, find_method, method_options
from fuels.methods.solo import Solo
from fuels.privacy.accountant import check as check_budget
from fuels.privacy.sensitivity import relation_of, unit_of
from fuels.sharing.declared_scale import check_scale


@dataclass(frozen=True)
class ResolvedSettings(Settings):
    """Settings with the method's defaults filled in, its options, and the layout of a sample.

    To describe another method's run, change the plain settings: these hold this method's values.
    """

    sample: Sample = field(init=False, repr=False, compare=False)
    method_options: Options = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        check_limits(self.mixture)
        given = method_options(self.method, self.options)
        derived = {
            "sample": sample_of(self.windows),
            "method_options": given,
            "options": asdict(given),
            "training": find_method(self.method).complete(self.training),
        }
        if self.privacy.epsilon:  # whether a value is plausible depends on others: see check_sums
            derived["data"] = replace(self.data, implausible=KEEP)
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # the class is frozen


def same_settings(stored: Mapping[str, Any], settings: ResolvedSettings, ignore: str = "") -> bool:
    """Whether these are the settings that a run stored, perhaps under a version that knew fewer.

    `ignore` names a section that may differ.
    """
    try:
        earlier = to_dict(resolve(merge(Settings(), stored, "stored settings")))
    except FuelsError:
        return False
    now = to_dict(settings)
    return {**earlier, ignore: None} == {**now, ignore: None}


def resolve(settings: Settings) -> ResolvedSettings:
    """The settings, checked and completed; resolved settings are returned as they are."""
    if isinstance(settings, ResolvedSettings):
        return settings
    return ResolvedSettings(**vars(settings))


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
    drops_implausible(settings.data.implausible, settings.mixture.on)
    for key, share in (("training.momentum", training.momentum), ("windows.doubt", windows.doubt)):
        if not 0 <= share < 1:
            raise FuelsError(f"{key} must be at least 0 and below 1; it is {share}")
    levels = settings.mixture.levels
    if not levels or any(not 0 < level < 100 for level in levels):
        raise FuelsError(
            "mixture.levels must be one or more percentages between 0 and 100, not"
            f" {', '.join(map(str, levels)) or 'none'}"
        )
    if settings.sharing.min_clients < 2:
        raise FuelsError(
            f"sharing.min_clients must be at least 2; it is {settings.sharing.min_clients}, but a"
            " sum over one client is that client's value"
        )
    check_defence(settings.defence)
    check_privacy(settings)
    late_joiners(training.late)
    newcomer_share(settings.data.newcomers)


def check_privacy(settings: Settings) -> None:
    """Refuse privacy settings that cannot work, or that the method does not have."""
    privacy = settings.privacy
    for name in ("first", "every"):
        if getattr(privacy, name) < 1:
            raise FuelsError(f"privacy.{name} must be at least 1; it is {getattr(privacy, name)}")
    if privacy.epsilon:
        check_sums(settings)
    check_groups(settings)
    plain = Privacy()
    if privacy.masked:
        check_masked(settings)
    of_prototypes = ("secret", "first", "every")
    if settings.method != Fuels.name and any(
        getattr(privacy, name) != getattr(plain, name) for name in of_prototypes
    ):
        raise FuelsError(
            f"privacy.secret, privacy.first and privacy.every are settings of the method fuels, not"
            f" of {settings.method}"
        )


def check_masked(settings: Settings) -> None:
    """Refuse masked uploads for a method or a defence that needs single uploads."""
    method, defence = find_method(settings.method), settings.defence
    if not method.only_mean:
        able = [name for name in METHODS if find_method(name).only_mean]
        raise FuelsError(
            f"privacy.masked is for methods of which the server needs only the mean of the uploads"
            f" ({', '.join(able)}), not for {settings.method}"
        )
    needs = {
        "aggregation": defence.aggregation != "mean",
        "admission": defence.admission > 0,
        "joint": defence.joint > 0,
        "votes": defence.votes != "client",
    }
    for name in (name for name, used in needs.items() if used):
        raise FuelsError(
            f"defence.{name} = {getattr(defence, name)} needs single uploads, which privacy.masked"
            f" hides from the server: set defence.{name} = {getattr(Defence(), name)}"
        )


def refuse_masked(settings: Settings) -> None:
    """Refuse masked uploads on one machine, where nothing is uploaded."""
    if settings.privacy.masked:
        raise FuelsError(
            "privacy.masked hides uploads from the server of a federation (fuels federation run);"
            " on one machine there is nobody to hide them from: omit it"
        )


def check_sums(settings: Settings) -> None:
    """Refuse settings that a guarantee for sums cannot be given for."""
    privacy, sharing = settings.privacy, settings.sharing
    check_budget(privacy.epsilon, privacy.delta)
    unit_of(privacy.unit)
    relation_of(privacy.relation)
    check_scale(privacy.scale)
    if privacy.colluding < 1:
        raise FuelsError(
            f"privacy.colluding must be at least 1, because every site knows its own noise; it is"
            f" {privacy.colluding}"
        )
    if settings.method != Solo.name:
        raise FuelsError(
            "privacy.epsilon covers sums over clients and nothing else: it needs --method solo,"
            f" because {settings.method} also sends {find_method(settings.method).sends}"
        )
    if not settings.mixture.on or not (sharing.statistics or sharing.live_mean):
        raise FuelsError(
            "privacy.epsilon needs something to protect: set mixture.on, and sharing.statistics or"
            " sharing.live_mean"
        )
    if sharing.noise:
        raise FuelsError("sharing.noise and privacy.epsilon exclude each other: omit sharing.noise")
    if settings.data.implausible == MISSING:
        raise FuelsError(
            "privacy.epsilon needs --implausible keep: whether a value counts as missing depends on"
            " other values, which the guarantee does not cover"
        )


def check_groups(settings: Settings) -> None:
    """Refuse groups of similar clients that nothing would use."""
    groups = settings.privacy.groups
    if groups < 1:
        raise FuelsError(f"privacy.groups must be at least 1; it is {groups}")
    if groups > 1 and not (settings.privacy.epsilon and settings.sharing.live_mean):
        raise FuelsError(
            "privacy.groups divides the live mean of noised sums: it needs --privacy epsilon=4 and"
            " sharing.live_mean"
        )


def refuse_without_ledger(settings: Settings) -> None:
    """Refuse a guarantee where nothing is written to disk."""
    if settings.privacy.epsilon:
        raise FuelsError("privacy.epsilon needs a ledger on disk: train with fuels run --privacy")


def check_defence(defence: Defence) -> None:
    """Refuse defences that cannot work."""
    if defence.aggregation not in AGGREGATIONS:
        raise FuelsError(
            f"unknown defence.aggregation {defence.aggregation}"
            f"{nearest(defence.aggregation, AGGREGATIONS)}"
        )
    if defence.votes not in VOTES:
        raise FuelsError(f"unknown defence.votes {defence.votes}{nearest(defence.votes, VOTES)}")
    if defence.votes == "site" and defence.aggregation != "mean":
        raise FuelsError(
            f"defence.votes = site needs defence.aggregation = mean: {defence.aggregation} counts"
            " clients"
        )
    if not 0 <= defence.tolerated < 0.5:
        raise FuelsError(
            "defence.tolerated must be a share of the clients, at least 0 and below 0.5; it is"
            f" {defence.tolerated}"
        )
    if not 0 < defence.farthest <= 100:
        raise FuelsError(
            f"defence.farthest must be a percentile above 0, at most 100; it is {defence.farthest}"
        )
    for name in ("clip", "joint", "admission", "trials", "refusals"):
        if getattr(defence, name) < 0:
            raise FuelsError(f"defence.{name} must not be negative; it is {getattr(defence, name)}")
    if defence.joint and not defence.clip:
        raise FuelsError(
            "defence.joint needs defence.clip, without which one long update hides all others: set"
            " defence.clip as well, for example to 2"
        )
