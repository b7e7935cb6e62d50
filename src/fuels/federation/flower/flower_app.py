"""The Flower app that is submitted: a few lines that import this package, and a run's settings.

The app names the version of this package and lists every setting. Flower refuses a run with a
setting that the app does not list, so after an upgrade the app is rewritten before the next run.
"""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fuels.config import Settings, merge, with_preset, without_missing
from fuels.errors import FuelsError
from fuels.federation.flower.folders import RefusalError, ServerFolder, log
from fuels.version import __version__, requirement

if TYPE_CHECKING:
    from fuels.runs.settings import ResolvedSettings


MOST_PROJECT = 2**20  # bytes of an app's pyproject.toml that are read
SECTIONS = {field.name for field in fields(Settings)} - {"data"}  # a resolved run has more


def write_app(folder: Path) -> None:
    """Write the app of this version; an existing one is replaced."""
    package = folder / "fuels_app"
    package.mkdir(parents=True, exist_ok=True)
    package.joinpath("__init__.py").write_text('"""FUELS as a Flower app."""\n')
    for side in ("server", "client"):
        package.joinpath(f"{side}.py").write_text(
            f'"""The {side} side."""\n\n'
            f"from fuels.federation.flower.app import {side}_app as app\n\n"
            '__all__ = ["app"]\n'
        )
    # Last and atomically: this file makes it the app of this version.
    temporary = folder / "pyproject.toml.tmp"
    temporary.write_text(tomli_w.dumps(_project()), encoding="utf-8")
    temporary.replace(folder / "pyproject.toml")


def update_app(folder: ServerFolder) -> None:
    """Rewrite the app if it is damaged or of another version."""
    found = _read(folder.app / "pyproject.toml")
    if found != tomllib.loads(tomli_w.dumps(_project())):
        needs = found.get("project", {}).get("dependencies", [])
        log.info("the Flower app was for %s; rewriting it for fuels %s", needs, __version__)
        write_app(folder.app)


def _read(file: Path) -> dict[str, Any]:
    """The content of an app's file; nothing if it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _project() -> dict[str, Any]:
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "fuels-app",
            "version": "1.0.0",
            "description": "Personal traffic forecasters, trained together through prototypes",
            "license": "Apache-2.0",
            "dependencies": [f"{requirement('flower')}=={__version__}"],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": "fuels",
                    "components": {
                        "serverapp": "fuels_app.server:app",
                        "clientapp": "fuels_app.client:app",
                    },
                    "config": run_config("", Settings()),
                }
            },
        },
    }


def check_app(bundle: bytes) -> None:
    """Refuse the app of another version, as the server submitted it.

    A site never runs the app's code (dispatcher.py). But a server of another version may mean other
    things by its messages, and what a site agrees to is what its own version documents.
    """
    try:
        with (
            zipfile.ZipFile(io.BytesIO(bundle)) as files,
            files.open("pyproject.toml") as file,
        ):
            found = tomllib.loads(file.read(MOST_PROJECT).decode("utf-8"))
        needs = [str(each) for each in found["project"]["dependencies"]]
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, OSError, NotImplementedError):
        needs = []
    own = _project()["project"]["dependencies"]
    if needs != own:
        reason = (
            f"the server's app is for {', '.join(needs)[:100] or 'an unknown version'}, and this"
            f" site runs {own[0]}: a site answers only its own version"
        )
        log.error("%s", reason)
        raise RefusalError(reason)


def run_config(run: str, settings: Settings) -> dict[str, Any]:
    """The settings as a Flower run config; `settings_of` reads it back.

    It has every setting, also those that are off: Flower refuses what the app's config lacks.
    """
    values = {
        section: {key: _plain(inner) for key, inner in value.items()}
        if isinstance(value, dict)
        else value
        for section, value in asdict(settings).items()
        if section in SECTIONS
    }
    return {**values, "options": json.dumps(dict(settings.options)), "run": run}


def inline(settings: Settings) -> str:
    """The settings as the text of Flower's --run-config, which needs no file.

    The run has no name: its folder is named after Flower's number of it.
    """
    words = []
    for key, value in run_config("", settings).items():
        inner = value if isinstance(value, dict) else {"": value}
        words += [f"{key}.{name}".strip(".") + f"={_word(inner[name])}" for name in inner]
    return " ".join(words)


def _word(value: Any) -> str:
    """A value as TOML on one line; Flower does not accept text that contains its own quote."""
    if not isinstance(value, str):
        return json.dumps(value)
    quote = "'" if '"' in value or "\\" in value else '"'
    if quote in value:
        raise FuelsError(f"Flower does not accept text with both kinds of quotes: {value}")
    return f"{quote}{value}{quote}"


def _plain(value: Any) -> Any:
    """Flower's run config has no lists: items are separated by commas, as on the command line."""
    return ",".join(str(item) for item in value) if isinstance(value, list | tuple) else value


def write_run_config(path: Path, run: str, settings: Settings) -> None:
    path.write_text(tomli_w.dumps(run_config(run, settings)), encoding="utf-8")


def settings_of(run_config: Mapping[str, Any]) -> ResolvedSettings:
    """The settings in a Flower run config: `section.key` as in config.toml, options as JSON."""
    nested: dict[str, Any] = {}
    for key, value in run_config.items():
        if key == "run":
            continue
        if key == "options":
            value = _options(str(value))
        section, dot, inner = key.partition(".")
        if dot:
            nested.setdefault(section, {})[inner] = value
        else:
            nested[key] = value
    preset = str(nested.pop("preset", "paper"))
    settings = without_missing(with_preset(Settings(), preset, "run config"), nested)
    settings = merge(settings, nested, "run config")
    # The app's own config lists every setting, so the name of a preset has no effect without them.
    if preset != "paper" and with_preset(settings, "paper", "") == replace(
        settings, preset="paper"
    ):
        raise FuelsError(
            f"run config: preset is {preset}, but the settings are those of preset paper; use"
            f" fuels federation run --preset {preset}"
        )
    return federated(settings, "run config")


def federated(settings: Settings, place: str) -> ResolvedSettings:
    """The settings of a run across sites, completed and checked; they name no file."""
    if settings.training.warm_start:
        raise FuelsError(f"{place}: training.warm_start names a file that the sites do not have")
    if settings.data != Settings().data:
        raise FuelsError(f"{place}: data cannot be set here; each site sets it in its site.toml")
    if settings.privacy.ledger:
        raise FuelsError(
            f"{place}: privacy.ledger names a file; in a federation, each site has its own ledger"
        )
    if settings.privacy.groups > 1:
        raise FuelsError(
            f"{place}: privacy.groups is for one machine (fuels run); in a federation, each site"
            " would have to send the mean day of every client, and only sums leave a site"
        )
    if Path(settings.privacy.scale).name != settings.privacy.scale:
        raise FuelsError(
            f"{place}: privacy.scale is a file in the folder of each site; give its name without a"
            " path, such as scale.csv"
        )
    if settings.sharing.noise:
        raise FuelsError(
            f"{place}: sharing.noise is for sums on one machine (fuels run); between organisations,"
            " privacy.epsilon adds noise with a guarantee"
        )
    from fuels.runs.settings import resolve  # imports PyTorch, which the supervisor does not need

    return resolve(settings)


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise FuelsError('run config: options must be a JSON object, such as {"rho": 5}')
    return options
