"""The Flower app that is submitted: two lines of code that name this package, and a run's settings.

It names the version of this package and lists every setting, and Flower refuses a run with a
setting that the app does not list. So after an upgrade it is written anew, by whoever starts the
server or submits a run.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from fuels.config import Settings
from fuels.federation.flower.commands import run_config
from fuels.federation.flower.parties import ServerFolder, log
from fuels.version import __version__, requirement


def write_app(folder: Path) -> None:
    """The app of this version, in place of another that may be there."""
    package = folder / "fuels_app"
    package.mkdir(parents=True, exist_ok=True)
    package.joinpath("__init__.py").write_text('"""FUELS as a Flower app."""\n')
    for side in ("server", "client"):
        package.joinpath(f"{side}.py").write_text(
            f'"""The {side} side."""\n\n'
            f"from fuels.federation.flower import app_{side}\n\n"
            f"app = app_{side}.app\n"
        )
    # Last, and replaced as a whole: with it the app counts as this version's.
    temporary = folder / "pyproject.toml.tmp"
    temporary.write_text(tomli_w.dumps(_project()), encoding="utf-8")
    temporary.replace(folder / "pyproject.toml")


def update_app(folder: ServerFolder) -> None:
    """Write the app anew if it is another version's, or damaged."""
    found = _needs(folder.app / "pyproject.toml")
    if found != _project()["project"]["dependencies"]:
        log.info("the Flower app is written for fuels %s; it was for %s", __version__, found)
        write_app(folder.app)


def _needs(file: Path) -> list[str]:
    """What an app says it needs; nothing where it cannot be read."""
    try:
        project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return list(project["project"]["dependencies"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _project() -> dict[str, Any]:
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "fuels-app",
            "version": "1.0.0",
            "description": "Personal traffic forecasters, learned together on prototypes",
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
