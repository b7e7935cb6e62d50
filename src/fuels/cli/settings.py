"""From the command line and a config file to the settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fuels.config import (
    DEFAULT_PRESET,
    SCALES,
    Data,
    Engine,
    Settings,
    coerce,
    merge,
    merge_engine,
    nearest,
    to_dict,
    with_preset,
)
from fuels.data.sources import located as whole_paths
from fuels.data.sources import source_title
from fuels.errors import FuelsError
from fuels.storage.config_file import read_config


def given(changes: dict[str, Any]) -> dict[str, Any]:
    """Only what was given on the command line; paths as text."""
    kept: dict[str, Any] = {}
    for key, value in changes.items():
        inner = given(value) if isinstance(value, dict) else value
        if inner is None or inner == {}:
            continue
        kept[key] = str(inner) if isinstance(inner, Path) else inner
    return kept


def assemble(
    changes: dict[str, Any],
    preset: str | None,
    scale: str | None,
    config: Path | None,
    assignments: list[str],
) -> tuple[Settings, Engine, list[str]]:
    """Config file, then preset, then scale, then options, then --set: the later one wins."""
    start = with_preset(Settings(), DEFAULT_PRESET, "preset"), Engine()
    settings, engine = start if config is None else read_config(config)
    options = {str(config): settings.options}  # options of the method, by their source
    notes: list[str] = []
    if preset is not None:
        before, settings = settings, with_preset(settings, preset, f"--preset {preset}")
        replaced = ", ".join(differences(before, settings))
        if config is not None and replaced:
            notes.append(f"--preset {preset} replaces {replaced} of {config}")
    elif settings.preset == "paper":
        notes.append(f"using preset paper, as {config} says")
    else:
        notes.append(
            f"using preset {settings.preset}; for the settings of the paper, give --preset paper"
        )
    embedded = config is None and "source" not in changes.get("data", {})
    if scale is None and embedded:
        scale = "quick"
    if scale is not None:
        if scale not in SCALES:
            raise FuelsError(f"--scale {scale} is unknown{nearest(scale, SCALES)}")
        settings = merge(settings, SCALES[scale], f"--scale {scale}")
    settings = merge(settings, changes, "command line")
    for text in assignments:
        change = assignment(text)
        engine = merge_engine(engine, change.pop("engine", {}), f"--set {text}")
        settings = merge(settings, change, f"--set {text}")
        options[f"--set {text}"] = change.get("options", {})
    if not settings.data.source:
        raise FuelsError(
            "data.source is empty: give a file, a folder, or synthetic:net for the embedded data"
        )
    for place, own in options.items():
        check_options(settings.method, own, place)
    refuse_idle(settings.data)
    settings = located(settings)
    if scale == "quick":
        notes.append(
            f"--scale quick: {settings.data.clients or 'all'}"
            f" client{'s' * (settings.data.clients != 1)},"
            f" {settings.training.rounds} round{'s' * (settings.training.rounds != 1)};"
            " for the size used in the paper (100 clients, 200 rounds), give --scale paper"
        )
    return settings, engine, notes


PRIVACY_PARTS = ("epsilon", "delta", "unit", "relation", "scale", "ledger", "colluding", "groups")


def private_preset(preset: str | None, text: str) -> tuple[str, dict[str, str]]:
    """The preset and the changes of `--privacy epsilon=4,unit=day`."""
    if preset not in (None, "private"):
        raise FuelsError(f"--privacy has its own preset: omit --preset {preset}")
    parts: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise FuelsError(f"--privacy takes epsilon=4, or more parts with commas, not {text!r}")
        if name not in PRIVACY_PARTS:
            raise FuelsError(f"--privacy has no part {name}{nearest(name, PRIVACY_PARTS)}")
        parts[name] = value
    if "epsilon" not in parts:
        raise FuelsError(f"--privacy {text}: say how much may be revealed, such as epsilon=4")
    if coerce(parts["epsilon"], float, "--privacy epsilon") <= 0:
        raise FuelsError(f"--privacy {text}: epsilon must be above 0; 0 would guarantee nothing")
    if "ledger" in parts:
        parts["ledger"] = whole_paths(parts["ledger"])
    return "private", parts


def assignment(text: str) -> dict[str, Any]:
    """`section.key=value` from the command line as nested changes."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise FuelsError(f"--set takes section.key=value, not {text!r}")
    if key == "preset":
        raise FuelsError(f"--set {text}: a preset is not a single setting; use --preset")
    changes: dict[str, Any] = {}
    inner = changes
    *sections, last = key.split(".")
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[last] = value
    return changes


def differences(one: Settings, other: Settings) -> list[str]:
    """The names of the settings in which the two differ; only those in sections."""
    first, second = to_dict(one), to_dict(other)
    return [
        f"{section}.{key}"
        for section, values in first.items()
        if isinstance(values, dict)
        for key, value in values.items()
        if value != second.get(section, {}).get(key)
    ]


def check_options(method: str, options: Mapping[str, Any], place: str) -> None:
    """Refuse options that the method does not have, or of a wrong type, naming their source."""
    if options:
        from fuels.methods.registry import method_options  # and torch with it

        method_options(method, options, place)


def refuse_idle(data: Data) -> None:
    """Refuse options for reading a file with the embedded data, which would ignore them."""
    if not data.source.startswith("synthetic:"):
        return
    for field in fields(data):
        always = ("source", "clients", "ids", "implausible", "inputs", "inputs_file")
        if field.name not in always and getattr(data, field.name):
            raise FuelsError(
                f"data.{field.name} applies to data from a file; the embedded data (synthetic:net,"
                " synthetic:sms, synthetic:call) take no such options"
            )


def located(settings: Settings) -> Settings:
    """The settings with whole paths, so that the run can be used from any folder."""

    def whole(path: str) -> str:
        return path if not path or path.startswith("synthetic:") else whole_paths(path)

    data = replace(
        settings.data,
        source=whole(settings.data.source),
        coordinates=whole(settings.data.coordinates),
        inputs_file=whole(settings.data.inputs_file),
    )
    training = replace(settings.training, warm_start=whole(settings.training.warm_start))
    return replace(settings, data=data, training=training)


def source_name(settings: Settings) -> str:
    source = settings.data.source
    return source.replace(":", "-") if source.startswith("synthetic:") else source_title(source)
