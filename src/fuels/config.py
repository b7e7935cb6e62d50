"""Every setting of a run, its default, and the presets: the one place where defaults live.

`Settings` define a run: two runs with equal settings give equal results. How fast it is
computed (threads, device) is the `Engine`, which is not part of them. Both are written to a run's
`config.toml`, and `fuels run --config` reads that file back.
"""

from __future__ import annotations

import difflib
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from fuels.errors import FuelsError


@dataclass(frozen=True)
class Data:
    """Where the series come from and which of them take part."""

    source: str = "synthetic:net"  # file, A,B, pattern or folder; or synthetic:{sms,call,net}
    clients: int = 0  # number of clients to draw at random; 0: all that can take part
    ids: tuple[str, ...] = ()  # only these clients
    client_column: str = ""
    time_column: str = ""  # DATE,HOUR: two columns
    value_column: str = ""
    time_format: str = ""  # how times are written, e.g. %d.%m.%Y %H:%M; empty: detected
    timezone: str = ""
    decimal: str = ""  # decimal separator: point or comma; empty: detected
    thousands: str = ""  # between thousands: point, comma, space, apostrophe or none
    missing: str = ""  # numbers that mark missing values, e.g. 0 in METR-LA, or -1,9999
    # Values that are implausible given their past: missing or keep; empty: missing with a mixture.
    implausible: str = ""
    duplicates: str = ""  # rows of one client and time: error, same (default), first, sum, ...
    round_times: str = ""  # round times to this step, e.g. 1min
    activity: str = ""  # sms, call or net of raw telecom records
    coordinates: str = ""
    unit: str = ""  # of the values, as text for tables, plots and the report; empty: the file's
    resample: str = ""
    how: str = ""
    start: str = ""
    end: str = ""
    inputs: tuple[str, ...] = ()  # columns known in advance, such as temperature
    inputs_file: str = ""  # second table with them, for each client or for all
    newcomers: str = ""  # SHARE@PERIODS: that share has only the last periods of training


@dataclass(frozen=True)
class Windows:
    """What one sample sees (Section 2 of the paper) and how the span is divided."""

    period: int = 24  # p, in steps
    closeness: int = 3  # c: the last c values
    periodicity: int = 3  # q: the same phase of the last q periods
    lags: str = ""  # other windows than c and q, one list per GRU: 1-4/1p,1p+1,2p,7p; p: period
    calendar: tuple[str, ...] = ()  # calendar inputs of the model: time, free (days off), weekday
    doubt: float = 0.0  # share of training periods in which days off and working days are swapped
    holidays: tuple[str, ...] = ()  # days off besides weekends: dates, or a country such as IT
    target: str = "value"  # forecast the value, or the change from the last value
    horizon: int = 1  # H: steps ahead, each with its own output head
    split: str = ""  # periods for train/val/test, e.g. 40/11/11; empty: 40:11:11 in proportion
    max_gap: int = 0  # longest gap that is filled, in steps; 0 means one period


@dataclass(frozen=True)
class Model:
    """The personal model: encoder and the width of one of its branches."""

    encoder: str = "gru"
    hidden: int = 128
    head: str = "concat"  # input of the decoder: the branches' states concatenated, or their sum


@dataclass(frozen=True)
class Training:
    """The budget every method gets."""

    rounds: int = 200  # T
    local_epochs: int = 1
    batch: int = 0  # B; must be one period, which 0 means
    # Defaults of the next four depend on the method: Adam 0.001, all clients; only FedDA differs.
    optimiser: str = ""  # adam or sgd; empty: the method's default
    learning_rate: float = 0.0  # 0: the method's default
    momentum: float = 0.0  # of sgd; if no optimiser is given, 0: the method's default
    selection: float = 0.0  # alpha: share of clients that train in a round; 0: method's default
    late: str = ""  # SHARE@ROUND: that share of the clients joins in that round
    keep: str = "best"  # model kept per client: best on the validation part, or last
    patience: int = 0  # stop after this many rounds without a lower validation error; 0: never
    warm_start: str = ""  # run folder whose models training starts from


@dataclass(frozen=True)
class Mixture:
    """Local experts in addition to the personal model, mixed as values arrive; nothing is sent."""

    on: bool = False
    levels: tuple[float, ...] = (80.0, 95.0)  # of the intervals, in percent
    at_least: str = ""  # least possible value; empty: 0 if no training value is negative; or none
    at_most: str = ""  # largest possible value; empty: none


@dataclass(frozen=True)
class Sharing:
    """What the experts of one client learn from the others, as sums over clients."""

    statistics: bool = False  # pooled ridge coefficients from summed products
    live_mean: bool = False  # ridges also see the mean of the other clients
    min_clients: int = 10  # least number of clients in a sum
    noise: float = 0.0  # standard deviation of Gaussian noise on each sum; no privacy guarantee


@dataclass(frozen=True)
class Defence:
    """What bounds the influence of clients that send false values. Not in the paper."""

    aggregation: str = "mean"  # of models: mean, trimmed, median or krum
    clip: float = 0.0  # bound on a model's update, in median norms, and on its weight; 0: none
    joint: float = 0.0  # bound on updates along each of their principal directions, in MAD; 0: none
    tolerated: float = 0.2  # share of false clients that trimmed and krum withstand
    directions: bool = False  # average prototypes by direction, all rows of length 1
    admission: float = 0.0  # leave out uploads farther from the others than this many MAD; 0: none
    farthest: float = 100.0  # percentile of divergence beyond which a prototype is not a negative
    trials: int = 0  # rounds between trials of FUELS clients without L_inter; 0: no trials
    refusals: int = 0  # exclude a client whose values were refused this often; 0: never
    votes: str = "client"  # in means and medians: one vote per client or per site


@dataclass(frozen=True)
class Privacy:
    """What bounds how much a client's uploads reveal: prototypes, and sums. Not in the paper."""

    masked: bool = False  # in a federation, send masked sums; for methods that need only means
    secret: bool = False  # draw initial model and order of prototypes from the sites' secret
    first: int = 1  # the first round in which prototypes are sent
    every: int = 1  # rounds from one prototype to the next
    epsilon: float = 0.0  # differential privacy of shared sums; 0: none
    delta: float = 1e-5
    unit: str = "hour"  # what is protected, of one client: hour, day or client
    relation: str = "removed"  # values of a unit in neighbouring data: removed or replaced
    scale: str = ""  # MEAN,STD of clients or a CSV, known without the data; empty: released, noised
    ledger: str = ""  # file of all releases; empty: privacy.jsonl in the run folder
    colluding: int = 1  # sites of a federation that may reveal their noise; each knows its own
    groups: int = 1  # groups of clients with similar noised mean days, each with a live mean


@dataclass(frozen=True)
class Settings:
    """Everything that determines the result of a run."""

    seed: int = 0
    preset: str = "paper"
    method: str = "fuels"
    data: Data = field(default_factory=Data)
    windows: Windows = field(default_factory=Windows)
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    mixture: Mixture = field(default_factory=Mixture)
    sharing: Sharing = field(default_factory=Sharing)
    defence: Defence = field(default_factory=Defence)
    privacy: Privacy = field(default_factory=Privacy)
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own settings


@dataclass(frozen=True)
class Engine:
    """How a run is computed; the result does not depend on it."""

    threads: int = 0  # 0: all cores this process may use
    device: str = "cpu"
    kernels: str = "auto"  # auto, fused or plain
    transport: str = "local"  # local: one site in this process; ray: sites as Ray actors
    sites: int = 1  # number of sites with ray
    address: str = ""  # of a running Ray cluster; empty: start Ray on this machine


KEEP, MISSING = "keep", "missing"  # what to do with implausible values
# Sections that earlier versions did not have, as they are when off: see to_dict.
ADDED: dict[str, Any] = {"sharing": Sharing(), "defence": Defence(), "privacy": Privacy()}
# Settings that they did not have.
LATER = {
    "data": ("unit", "implausible", "inputs", "inputs_file"),
    "model": ("head",),
    "mixture": ("at_least", "at_most"),
    "defence": ("votes", "joint"),
    "privacy": tuple(f.name for f in fields(Privacy) if f.name not in ("secret", "first", "every")),
}

VOTES = ("client", "site")
AGGREGATIONS = ("mean", "trimmed", "median", "krum")
ENGINES = ("local", "ray")

# What presets change; the defaults are those of the paper.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # Chosen on days before any test day: docs/explanation/forecasts.md shows how.
    "best": {
        "windows": {
            "lags": "1-6/1p-1,1p,1p+1,2p",
            "calendar": ["time", "free"],
            "doubt": 0.35,
            "target": "change",
        },
        "training": {"rounds": 40, "learning_rate": 0.002},
        "mixture": {"on": True},
        "sharing": {"statistics": True, "live_mean": True},
    },
}
PRESETS["private"] = {**PRESETS["best"], "method": "solo", "privacy": {"epsilon": 4.0}}  # sums only
# What preset best adds in `fuels federation run`; docs/explanation/defences.md explains each.
DEFENCE_OF_BEST = Defence(
    clip=2.0, joint=7.0, directions=True, admission=5.0, farthest=95.0, trials=5, refusals=10
)
DEFAULT_PRESET = "best"  # if none is given; comparisons and experiments use paper
SCALES: dict[str, dict[str, Any]] = {
    "quick": {"data": {"clients": 24}, "training": {"rounds": 30}},
    "paper": {"data": {"clients": 100}, "training": {"rounds": 200}},
}


def with_preset(settings: Settings, preset: str, place: str, *, owners: int = 1) -> Settings:
    """`settings` with every setting that some preset changes as in `preset`, the rest unchanged.

    With several `owners`, preset best has its defences.
    """
    if preset not in PRESETS:
        raise FuelsError(f"{place}: unknown preset {preset}{nearest(preset, PRESETS)}")
    papers = Settings()
    for chosen in PRESETS.values():
        own = {
            name: {key: _plain(getattr(getattr(papers, name), key)) for key in keys}
            for name, keys in chosen.items()
            if isinstance(keys, Mapping)
        }
        settings = merge(settings, own, place)
    defence = DEFENCE_OF_BEST if preset == "best" and owners > 1 else Defence()
    changes = {"preset": preset, **PRESETS[preset]}
    return merge(replace(settings, defence=defence), changes, place)


def merge(settings: Settings, changes: Mapping[str, Any], place: str) -> Settings:
    """`settings` with nested `changes` applied; an unknown key or a wrong type is refused.

    `place` names where the changes come from (a file, an option) and opens the error message.
    """
    return typing.cast(Settings, _merge(settings, changes, place, ""))


def merge_engine(engine: Engine, changes: Mapping[str, Any], place: str) -> Engine:
    if not isinstance(changes, Mapping):
        raise FuelsError(f"{place}: engine is a section, not a value")
    return typing.cast(Engine, _merge(engine, changes, place, "engine."))


def _merge(target: Any, changes: Mapping[str, Any], place: str, prefix: str) -> Any:
    hints = typing.get_type_hints(type(target))
    known = {f.name for f in fields(target)}
    new: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in known:
            raise FuelsError(f"{place}: unknown setting {prefix}{key}{nearest(key, known)}")
        current = getattr(target, key)
        is_section = is_dataclass(current)
        if not is_section and not isinstance(current, Mapping):
            new[key] = coerce(value, hints[key], f"{place}: {prefix}{key}")
        elif not isinstance(value, Mapping):
            raise FuelsError(f"{place}: {prefix}{key} is a section, not a value")
        elif is_section:
            new[key] = _merge(current, value, place, f"{prefix}{key}.")
        else:
            new[key] = {**current, **value}
    return replace(target, **new)


def coerce(value: Any, kind: Any, place: str) -> Any:
    """`value`, from TOML or text, in the type of the setting; refuses values that do not fit."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        items = [i for i in value.split(",") if i] if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise FuelsError(f"{place} must be a list, not {value!r}")
        inner = typing.get_args(kind)[0]
        return tuple(coerce(i, inner, place) for i in items)
    if kind is bool:
        text = str(value).lower()
        if text not in ("true", "false"):
            raise FuelsError(f"{place} must be true or false, not {value!r}")
        return text == "true"
    if kind is str:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
        raise FuelsError(f"{place} must be text, not {value!r}")
    try:
        number = kind(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    cut = kind is int and not isinstance(value, str) and number != value  # 2.5 would become 2
    if number is None or cut:
        raise FuelsError(f"{place} must be {_KINDS.get(kind, kind.__name__)}, not {value!r}")
    if kind is float and not math.isfinite(number):
        raise FuelsError(f"{place} must be a finite number, not {value!r}")
    if kind is int and abs(number) > _LARGEST:
        raise FuelsError(f"{place} must be a whole number up to {_LARGEST}, not {value!r}")
    return number


_KINDS = {int: "a whole number", float: "a number"}
_LARGEST = 2**63 - 1  # the largest integer in TOML


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """`; did you mean X?` if a known word is similar, otherwise a list of the known words."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f" (known: {', '.join(choices)})"


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


def to_dict(settings: Settings, engine: Engine | None = None) -> dict[str, Any]:
    """Plain nested values, as in config.toml.

    Sections of ADDED that are off and settings of LATER that have their default are omitted, as in
    runs made before they existed.
    """
    content = {field.name: _plain(getattr(settings, field.name)) for field in fields(Settings)}
    for name, off in ADDED.items():
        if getattr(settings, name) == off:
            del content[name]
    usual = Settings()
    for section, names in LATER.items():
        for name in names if section in content else ():
            if getattr(getattr(settings, section), name) == getattr(getattr(usual, section), name):
                del content[section][name]
    return content if engine is None else {**content, "engine": _plain(engine)}


def _plain(value: Any) -> Any:
    """A section as a dict, a tuple as a list."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def without_missing(settings: Settings, content: Mapping[str, Any]) -> Settings:
    """`settings` as a run's file means them: sections of ADDED that it does not have are off.

    A run's file has all other sections; in any other file a missing section is the preset's.
    """
    if not {field.name for field in fields(Settings)} - {"preset", *ADDED} <= content.keys():
        return settings
    return replace(settings, **{k: off for k, off in ADDED.items() if k not in content})
