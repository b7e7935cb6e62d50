"""The help of a federation: a person who reads it can write the command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import typer

from fuels.cli.commands import app


def commands_of(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands_of(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_help_says_what_each_word_is_and_gives_an_example() -> None:
    """No bare types such as TEXT."""
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    parties = ("federation ", "server ", "site ")
    found = {name: command for name, command in commands_of(root) if name.startswith(parties)}
    assert len(found) == 17
    for name, command in found.items():
        assert f"Example: fuels {name}" in command.help, name
        for parameter in command.params:
            if not getattr(parameter, "is_flag", False):
                assert parameter.metavar and parameter.help, (name, parameter.name)
